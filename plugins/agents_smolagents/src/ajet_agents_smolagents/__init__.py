"""agentjet's adapter for smolagents."""
