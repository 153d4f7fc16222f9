"""``ajet gpu-check``: everything that may behave differently on a GPU, in minutes."""
