"""Tests of `ajet mcp`, `ajet assist` and the skills."""
