"""An MCP server with a tool for each fault: `faulty_server.py [http] [FAULT_AT_START]`.

With `http`, the first line of stdout is the port.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

# Before the imports that take long.
match sys.argv[1:]:
    case ["dies"]:
        sys.exit("no licence")
    case ["hangs"]:
        time.sleep(3600)
    case ["garbage"]:
        sys.stdout.write("Welcome!\n")
        sys.stdout.flush()
        time.sleep(3600)

import uvicorn
from mcp import MCPError
from mcp.server import MCPServer
from mcp.server.mcpserver import Resolve, Sample
from mcp_types import (
    INTERNAL_ERROR,
    CallToolResult,
    CreateMessageResult,
    ImageContent,
    SamplingMessage,
    TextContent,
)

server = MCPServer("faulty")
STDOUT = os.dup(1)


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def process() -> int:
    return os.getpid()


@server.tool()
def variable(name: str) -> str:
    return os.environ.get(name, "(not set)")


@server.tool()
def fails() -> str:
    raise ValueError("the shelf is empty")


@server.tool()
def refuses() -> str:
    raise MCPError(INTERNAL_ERROR, "the disk is full")


@server.tool()
def dies() -> str:
    os.write(2, b"out of paper\n")
    os._exit(3)


@server.tool()
async def hangs(started: str) -> str:
    """Write the process id to a file, then wait for ever."""
    Path(started).write_text(str(os.getpid()), encoding="utf-8")
    Path(started).rename(started + ".ready")
    await asyncio.Event().wait()
    return "never"


@server.tool()
def blocks() -> str:
    """Hang without reading further messages."""
    while True:
        time.sleep(3600)


@server.tool()
def garbage(binary: bool) -> str:
    """Write what is not a message, then answer."""
    os.write(STDOUT, b"\xff\xfe\n" if binary else b"debugging: here\n")
    return "after garbage"


@server.tool()
def only_garbage() -> str:
    os.write(STDOUT, b"debugging: here\n")
    time.sleep(3600)
    return "never"


@server.tool()
def child() -> int:
    """Start a process that outlives its parent."""
    return subprocess.Popen(["sleep", "3600"]).pid


@server.tool()
def picture() -> CallToolResult:
    image = ImageContent(type="image", data="iVBORw0KGgo=", mime_type="image/png")
    return CallToolResult(content=[TextContent(type="text", text="a dot"), image])


@server.tool()
def figures() -> CallToolResult:
    return CallToolResult(content=[], structured_content={"mean": 0.5})


def question_of(question: str) -> Sample:
    message = SamplingMessage(role="user", content=TextContent(type="text", text=question))
    return Sample([message], max_tokens=16, system_prompt="Be brief.")


@server.tool()
def asks(question: str, answer: Annotated[CreateMessageResult, Resolve(question_of)]) -> str:
    """Let the model of the client answer."""
    return f"The model says: {getattr(answer.content, 'text', '')}"


@server.tool(name="odd.name")
def odd() -> str:
    return "odd"


def serve() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    config = uvicorn.Config(server.streamable_http_app(), log_level="error")
    asyncio.run(uvicorn.Server(config).serve([listener]))


if __name__ == "__main__":
    if sys.argv[1:] == ["http"]:
        serve()
    else:
        server.run("stdio")
