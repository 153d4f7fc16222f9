"""agentjet's embedded engine and trainer on PyTorch and Hugging Face models."""
