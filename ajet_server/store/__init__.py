"""The sample store on SQLite."""
