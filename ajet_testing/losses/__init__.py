"""The losses that a trainer is compared with."""
