"""agentjet trainer on verl's workers, on Ray.

Nothing is imported here: `hooks` and `settings` are cheap to import; `trainer` imports torch, and
imports verl and Ray when it starts.
"""
