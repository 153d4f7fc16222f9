"""agentjet's adapter for LlamaIndex."""
