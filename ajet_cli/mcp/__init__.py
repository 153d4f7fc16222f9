"""The tools with which assistants drive a swarm server over MCP, as `ajet mcp` serves them.

`swarm` has the tools of a server, `registry` collects tools, `answers` bounds what they return, and
`server` offers them over stdio, `http` over HTTP.
"""
