"""agentjet's metrics logger for Weights & Biases."""
