"""agentjet's adapter for AutoGen."""
