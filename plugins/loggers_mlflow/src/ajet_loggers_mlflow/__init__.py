"""agentjet's metrics logger for MLflow."""
