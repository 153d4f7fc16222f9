"""agentjet's metrics logger for TensorBoard."""
