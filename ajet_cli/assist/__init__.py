"""Setting up coding assistants: their configuration, skills and a section of AGENTS.md.

`jsonc` and `toml` merge into files that belong to the user, `hosts` says what each assistant needs,
`skills` copies skills, and `installing` plans and writes all of it.
"""
