"""agentjet's adapter for smolagents."""

__version__ = "0.1.0"
