"""A small library about times, money and texts: the repository that tasks break."""
