"""From a stored batch to what its trainer is given."""
