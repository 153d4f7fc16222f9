"""agentjet's embedded engine and trainer on PyTorch and Hugging Face models.

Nothing is imported here: `hooks` and `settings` are cheap to import, `engine` and `trainer` import
torch.
"""
