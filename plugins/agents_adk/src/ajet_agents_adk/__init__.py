"""agentjet's adapter for Google's Agent Development Kit (ADK)."""
