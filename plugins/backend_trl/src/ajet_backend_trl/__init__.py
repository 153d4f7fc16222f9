"""agentjet trainers on Hugging Face TRL.

Nothing is imported here: `hooks` and `settings` are light, `trainer` imports torch and TRL.
"""
