"""A trainer for agentjet that writes what would be trained, and trains nothing."""
