"""Short cuts that save CPU time of calls and change no answer.

The setting ``server.fast_paths`` names those that are used; each part of the server that has a
short cut also works without it. ``docs/architecture.md`` says what each saves, and
``benchmarks/fast_paths.py`` measures it.
"""
