"""agentjet trainers on Hugging Face TRL.

Nothing is imported here: `hooks` and `settings` are light, `trainer` imports torch and TRL.
"""

__version__ = "0.1.0"
