"""Convert messages to tokens and back, and make calls extend the tokens of earlier calls."""
