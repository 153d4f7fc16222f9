"""How programs run as episodes, one by one and over a dataset, in async and sync form."""
