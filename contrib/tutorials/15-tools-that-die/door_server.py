"""An MCP server with one tool. It dies without a word at every hundredth call."""

import itertools
import os

from mcp.server import MCPServer

GOLD = {"blue": "left", "green": "right", "red": "middle", "black": "left"}
server = MCPServer("doors", log_level="ERROR")
calls = itertools.count(1)


@server.tool()
def open_door(key: str, door: str) -> str:
    """Open a door."""
    if next(calls) == 100:
        os._exit(1)
    return "gold" if GOLD.get(key) == door else "nothing"


if __name__ == "__main__":
    server.run("stdio")
