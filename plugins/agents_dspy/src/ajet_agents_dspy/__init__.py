"""agentjet's adapter for DSPy."""
