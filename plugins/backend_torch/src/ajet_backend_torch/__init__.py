"""agentjet's embedded engine and trainer on PyTorch and Hugging Face models.

Nothing is imported here: `hooks` and `settings` are light, `engine` and `trainer` import torch.
"""
