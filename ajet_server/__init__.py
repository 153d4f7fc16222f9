"""The swarm server."""
