"""An engine for agentjet over any HTTP endpoint that takes and returns token ids."""
