"""What describes an MCP server, and the errors of one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from ajet_core.errors import ConfigError

ToolErrors = Literal["text", "raise"]


@dataclass(frozen=True)
class _McpServer:
    name: str
    _: KW_ONLY
    shared: bool = False
    start_timeout: float = 30.0
    call_timeout: float = 60.0
    tool_errors: ToolErrors = "text"

    def __post_init__(self) -> None:
        # Names of tools are prefixed with it.
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,32}", self.name):
            raise ConfigError(
                f"{self.name!r} cannot be the name of an MCP server: use 1 to 32 letters, digits, "
                "underscores and hyphens"
            )
        if self.start_timeout <= 0 or self.call_timeout <= 0:
            raise ConfigError(f"the time limits of MCP server {self.name!r} must be positive")


@dataclass(frozen=True)
class StdioServer(_McpServer):
    """An MCP server that is a process of this machine and speaks over its stdin and stdout.

    :ivar name: at most 32 letters, digits, underscores and hyphens.
    :ivar command: the program, without a shell.
    :ivar args: its arguments.
    :ivar env: variables of its environment. Of this process's environment, the server receives only
        ``HOME``, ``LOGNAME``, ``PATH``, ``SHELL``, ``TERM`` and ``USER`` (on Windows, what programs
        need there).
    :ivar cwd: its working directory; None for that of this process.
    :ivar shared: one process for all episodes, instead of one for each episode.
    :ivar start_timeout: seconds until the server must have listed its tools.
    :ivar call_timeout: seconds for each call.
    :ivar tool_errors: what a tool that reports an error does: ``text`` returns its message, for the
        model to read; ``raise`` ends the episode.
    :raises ConfigError: the name or a time limit is invalid.
    """

    command: str
    args: Sequence[str] = ()
    _: KW_ONLY
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | Path | None = None


@dataclass(frozen=True)
class HttpServer(_McpServer):
    """An MCP server that is reached over streamable HTTP.

    :ivar name: at most 32 letters, digits, underscores and hyphens.
    :ivar url: the URL of its endpoint, such as ``http://127.0.0.1:8000/mcp``.
    :ivar headers: headers of each request, such as ``Authorization``.
    :ivar shared: one session for all episodes, instead of one for each episode.
    :ivar start_timeout: seconds until the server must have listed its tools.
    :ivar call_timeout: seconds for each call.
    :ivar tool_errors: as for `StdioServer`.
    :raises ConfigError: the name or a time limit is invalid.
    """

    url: str
    _: KW_ONLY
    headers: Mapping[str, str] = field(default_factory=dict)


Server = StdioServer | HttpServer


class McpServerError(RuntimeError):
    """An MCP server failed. The agent is not the cause, so its episode must be aborted.

    :ivar server: the server's name.
    :ivar tool: the tool that was called, by the server's own name for it; None if the server did
        not start.
    :ivar reason: the exceptions or the time limit, and the last lines that the server wrote to
        stderr, if any.
    """

    def __init__(self, server: str, tool: str | None, reason: str) -> None:
        where = "did not start" if tool is None else f"failed in tool {tool!r}"
        super().__init__(f"MCP server {server!r} {where}: {reason}")
        self.server = server
        self.tool = tool
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.server, self.tool, self.reason)

    def again(self) -> Self:
        """Return the same error without a traceback, to raise it in another task."""
        return type(self)(self.server, self.tool, self.reason)


class McpTimeoutError(McpServerError, TimeoutError):
    """An MCP server did not start, or did not answer a call, within its time limit."""


def leaves(error: BaseException) -> str:
    """Describe an exception, or all exceptions in a group, such as ``ConnectError: refused``."""
    if isinstance(error, BaseExceptionGroup):
        # A group may hold the same error several times, once for each task that it ended.
        return "; ".join(dict.fromkeys(map(leaves, error.exceptions)))
    text = str(getattr(error, "message", "") or error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
