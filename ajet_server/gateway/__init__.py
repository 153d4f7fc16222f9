"""The path of an agent's call: from its request to the engine, and back."""
