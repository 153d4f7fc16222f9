"""agentjet's adapter for AgentScope."""

__version__ = "0.1.0"
