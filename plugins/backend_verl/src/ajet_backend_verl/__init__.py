"""agentjet trainer on verl's workers, on Ray.

Nothing is imported here: `hooks` and `settings` are light, `trainer` imports torch, and verl and Ray when it starts.
"""
