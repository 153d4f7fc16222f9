"""agentjet's metrics logger for Trackio."""
