"""agentjet's adapter for CrewAI."""

__version__ = "0.1.0"
