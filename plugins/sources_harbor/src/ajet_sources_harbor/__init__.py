"""agentjet's task source for Harbor task directories."""
