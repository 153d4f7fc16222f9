"""agentjet's adapter for CrewAI."""
