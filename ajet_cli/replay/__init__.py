"""Training steps of a stored run, computed again."""
