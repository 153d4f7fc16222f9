"""agentjet's adapter for the Claude Agent SDK."""
