"""The gateway's interface to agents: public request formats on top of token-level engines."""
