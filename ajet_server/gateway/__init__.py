"""A call of an agent, from its request to the engine and back."""
