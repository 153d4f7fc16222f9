"""agentjet's adapter for AgentScope."""
