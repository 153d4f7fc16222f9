"""The default components, registered with the same hooks as plugins."""
