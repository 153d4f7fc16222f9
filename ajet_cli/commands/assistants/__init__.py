"""Commands for coding assistants: `ajet mcp` and `ajet assist`."""
