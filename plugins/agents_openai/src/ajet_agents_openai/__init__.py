"""agentjet's adapter for the OpenAI Agents SDK."""

__version__ = "0.1.0"
