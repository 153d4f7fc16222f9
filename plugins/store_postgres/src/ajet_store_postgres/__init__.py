"""A sample store on PostgreSQL."""
