"""Sends agentjet's metrics to MLflow."""
