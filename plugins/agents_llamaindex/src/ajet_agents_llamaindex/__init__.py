"""agentjet's adapter for LlamaIndex."""

__version__ = "0.1.0"
