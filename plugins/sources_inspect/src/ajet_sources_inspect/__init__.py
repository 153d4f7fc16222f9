"""agentjet's task source for Inspect: any of its evals is trained and measured unchanged."""
