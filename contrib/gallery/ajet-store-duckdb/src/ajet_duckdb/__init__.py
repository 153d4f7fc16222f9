"""A sample store of agentjet in a DuckDB database."""
