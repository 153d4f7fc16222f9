"""agentjet's adapter for the OpenAI Agents SDK."""
