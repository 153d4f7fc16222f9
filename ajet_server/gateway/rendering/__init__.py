"""Messages to tokens and back, and the memory that makes calls extend each other's tokens."""
