"""agentjet's adapter for LangChain and LangGraph."""
