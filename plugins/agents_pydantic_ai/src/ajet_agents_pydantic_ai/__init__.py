"""agentjet's adapter for Pydantic AI."""
