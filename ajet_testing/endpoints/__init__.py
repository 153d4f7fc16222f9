"""Endpoints of models that are no swarm server."""
