"""agentjet's adapter for LangChain and LangGraph."""

__version__ = "0.1.0"
