"""agentjet trainers on Hugging Face TRL.

Nothing is imported here: `hooks` and `settings` are cheap to import, `trainer` imports torch and
TRL.
"""
