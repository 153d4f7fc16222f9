"""The run store and the default sample store, which uses SQLite."""
