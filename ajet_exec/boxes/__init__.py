"""The sandboxes of agentjet, one module each, and what they have in common."""
