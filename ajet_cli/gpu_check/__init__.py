"""``ajet gpu-check``: everything that a GPU may do otherwise than a CPU, in minutes."""
