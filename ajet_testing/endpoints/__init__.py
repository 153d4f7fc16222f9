"""Model endpoints other than swarm servers."""
