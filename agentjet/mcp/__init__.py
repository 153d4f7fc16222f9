"""Tools of MCP servers for agents: definitions for the model, and calls that fail by name.

```python
from agentjet.mcp import HttpServer, McpServers, StdioServer

servers = McpServers(
    StdioServer("files", "my-file-server", ["--root", "/data"]),
    HttpServer("search", "http://127.0.0.1:9000/mcp", shared=True),
)

async with servers.tools() as tools:
    reply = await llm.chat.completions.create(tools=tools.definitions, ...)
    call = reply.choices[0].message.tool_calls[0].function
    text = await tools.call(call.name, call.arguments)
```

Needs `pip install "agentjet[mcp]>=0.1"`; the package `mcp` is imported when the first
server starts.
"""

from agentjet.mcp.servers import HttpServer, McpServerError, McpTimeoutError, StdioServer
from agentjet.mcp.toolset import McpServers, McpTools

__all__ = [
    "HttpServer",
    "McpServerError",
    "McpServers",
    "McpTimeoutError",
    "McpTools",
    "StdioServer",
]
