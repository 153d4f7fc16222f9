"""``ajet demo``: a complete training run on one machine, small enough to watch."""
