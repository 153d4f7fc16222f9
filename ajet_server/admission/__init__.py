"""Which claims may start, and when a batch is full."""
