"""agentjet's adapter for Pydantic AI."""

__version__ = "0.1.0"
