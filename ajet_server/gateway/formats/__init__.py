"""The agent's side of the gateway: public LLM request formats on top of token-level engines."""
