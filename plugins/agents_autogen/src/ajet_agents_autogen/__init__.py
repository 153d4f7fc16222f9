"""agentjet's adapter for AutoGen."""

__version__ = "0.1.0"
