"""``ajet demo``: a whole training run on one machine, small enough to watch."""
