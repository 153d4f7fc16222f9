"""One running MCP server, or one session with a server elsewhere."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, TextIO

from pydantic import ValidationError

from agentjet.mcp.sampling import Sampler
from agentjet.mcp.servers import HttpServer, McpServerError, McpTimeoutError, Server, leaves

if TYPE_CHECKING:
    from mcp import Client
    from mcp.client import Transport
    from mcp_types import CallToolResult, Tool

_CLOSE_SECONDS = 2.0
"""How long a server elsewhere may take to end its session."""
_TAIL_BYTES = 1000
"""How much of a server's stderr a message shows."""
_SHOWN = 100
"""How many characters of garbage a message shows."""
_ANNOUNCE = 'echo $$ >&2; exec "$@"'
"""A shell script that writes its process id, which the server keeps, before it becomes the server.

The package ``mcp`` does not say which process it started.
"""
_groups: set[int] = set()
"""The process groups of running servers."""


class ServerConnection:
    """A connection to a server, kept by a task of its own.

    The task groups in the package ``mcp`` must be left by the task that entered them, and cancel
    that task when a server fails. So the task of an agent never enters them.

    :ivar tools: the server's tools.
    :ivar broken: the connection failed, and must not be used again.
    :ivar counted: its failure is counted, which is one failure for all calls that it costs.
    """

    def __init__(self, server: Server, sampler: Sampler | None = None) -> None:
        self.server = server
        self._sampler = sampler
        self.tools: list[Tool] = []
        self.broken = False
        self.counted = False
        self._ready = asyncio.Event()
        self._stopping = asyncio.Event()
        self._answered = 0
        self._garbage = ""
        self._stderr = _Stderr()
        self._error: BaseException | None = None

    async def start(self) -> None:
        """Start the server, or connect to it, and list its tools.

        :raises McpServerError: it failed, or took too long.
        """
        import anyio

        self._scope = anyio.CancelScope()
        # Without the context of an episode, whose model calls are rerouted.
        self._task = asyncio.create_task(self._keep(), context=contextvars.Context())
        ready = asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait(
                {self._task, ready},
                timeout=self.server.start_timeout,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not self._ready.is_set():
                raise self._failure(None, self.server.start_timeout)
        except BaseException:
            self.broken = True
            await self.close()
            raise
        finally:
            ready.cancel()

    async def call(self, tool: str, arguments: dict[str, Any]) -> CallToolResult:
        """Call a tool.

        :raises McpServerError: the server failed, or took too long.
        :raises MCPError: the server refused the arguments.
        """
        before = self._answered
        calling = asyncio.create_task(self._client.call_tool(tool, arguments))
        calling.add_done_callback(lambda task: task.cancelled() or task.exception())
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            while (left := self._seconds_left(began, loop.time())) > 0:
                done, _ = await asyncio.wait(
                    {calling, self._task}, timeout=left, return_when=asyncio.FIRST_COMPLETED
                )
                if done:
                    break
        finally:
            if not calling.done():
                calling.cancel()
        # The other calls of a shared server may still be answered.
        self.broken |= self._task.done() or (not calling.done() and self._answered == before)
        if not calling.done() or calling.cancelled():
            raise self._failure(tool, self.server.call_timeout)
        if (error := calling.exception()) is None:
            self._answered += 1
            return calling.result()
        if _is_refusal(error):
            self._answered += 1
            raise error
        self.broken |= _is_closed(error)
        raise McpServerError(self.server.name, tool, self._with_stderr(leaves(error))) from error

    def _seconds_left(self, began: float, now: float) -> float:
        """Return how long a call may still take; the model calls that it needs do not count."""
        limit = self.server.call_timeout
        if self._sampler is None:
            return began + limit - now
        return limit if self._sampler.running else max(began, self._sampler.ended) + limit - now

    def is_alive(self) -> bool:
        """Whether a further call may succeed: nothing failed, and the process still runs."""
        return not (self.broken or self._task.done() or self._stderr.is_dead())

    async def close(self) -> None:
        """End the session and the process; a caller that is cancelled meanwhile waits, too."""
        self._stopping.set()
        if self.broken:
            self._scope.cancel()
        await finish(self._task, self._scope.cancel)

    async def _keep(self) -> None:
        try:
            with self._scope:
                async with self._connected() as client:
                    self.tools = await _tools_of(client)
                    self._client = client
                    self._ready.set()
                    await self._stopping.wait()
        # Tasks of `mcp` may raise anything.
        except Exception as error:  # noqa: BLE001
            self._error = error
        finally:
            # What the server started may outlive it.
            self._stderr.kill()

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[Client]:
        from mcp import Client

        async with contextlib.AsyncExitStack() as stack:
            transport = await self._transport(stack)
            yield await stack.enter_async_context(
                Client(
                    transport,
                    message_handler=self._receive_message,
                    sampling_callback=self._sampler,
                )
            )

    async def _transport(self, stack: contextlib.AsyncExitStack) -> Transport:
        import httpx2
        from mcp.client.stdio import StdioServerParameters, stdio_client
        from mcp.client.streamable_http import streamable_http_client

        server = self.server
        if isinstance(server, HttpServer):
            limit = max(server.start_timeout, server.call_timeout)
            client = httpx2.AsyncClient(headers=dict(server.headers), timeout=limit)
            await stack.enter_async_context(client)
            return streamable_http_client(server.url, http_client=client)
        command, args = server.command, list(server.args)
        if sys.platform != "win32":
            command, args = "/bin/sh", ["-c", _ANNOUNCE, "sh", command, *args]
        parameters = StdioServerParameters(
            command=command,
            args=args,
            env=dict(server.env),
            cwd=server.cwd,
            # `mcp` never notices an error of `strict`, so that calls would wait for their limit.
            encoding_error_handler="replace",
        )
        return stdio_client(parameters, errlog=self._stderr.open())

    async def _receive_message(self, message: object) -> None:
        if isinstance(message, Exception):
            self._garbage = leaves(message)
            if isinstance(message, ValidationError):
                self._garbage = repr(str(message.errors()[0]["input"])[:_SHOWN])

    def _failure(self, tool: str | None, limit: float) -> McpServerError:
        """Return why the connection has ended, or that it took too long."""
        if not self._task.done():
            reason = f"no answer within {limit:g} s"
            if self._garbage:
                reason += f"; the server sent what is not a message: {self._garbage}"
            return McpTimeoutError(self.server.name, tool, self._with_stderr(reason))
        reason = "the connection has ended" if self._error is None else leaves(self._error)
        return McpServerError(self.server.name, tool, self._with_stderr(reason))

    def _with_stderr(self, reason: str) -> str:
        # Reports show one line of an error.
        tail = " | ".join(self._stderr.tail().splitlines())
        return f"{reason}; its stderr ends with: {tail}" if tail else reason


class _Stderr:
    """The stderr of a server's process, whose first line is the id of the process."""

    def __init__(self) -> None:
        self._reader = -1
        self._writer: TextIO | None = None
        self._group: int | None = None
        self._head = b""
        self._tail = bytearray()

    def open(self) -> TextIO:
        """Return the file that the process is to write to."""
        if sys.platform == "win32":
            return sys.stderr
        self._reader, writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._writer = os.fdopen(writer, "w")
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._reader, self._read)
        return self._writer

    def is_dead(self) -> bool:
        """Whether the process is known to have ended."""
        if self._group is None:
            return False
        try:
            os.kill(self._group, 0)
        except ProcessLookupError:
            return True
        return False

    def tail(self) -> str:
        """Return the last lines that the server wrote."""
        if self._reader >= 0:
            self._read()
        return self._tail.decode(errors="replace").strip()

    def kill(self) -> None:
        """Kill what remains of the process and of its descendants in the same group."""
        if self._reader >= 0:
            self._read()
            self._ignore()
            os.close(self._reader)
            self._reader = -1
        if self._writer is not None:
            self._writer.close()
        if self._group is not None:
            _kill_group(self._group)
            _groups.discard(self._group)

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._reader, 65536):
                if self._group is None:
                    self._head += data
                    line, ended, data = self._head.partition(b"\n")
                    if not ended:
                        continue
                    self._group = int(line)
                    _groups.add(self._group)
                    if self._writer is not None:
                        self._writer.close()
                self._tail += data
                if len(self._tail) > _TAIL_BYTES:
                    del self._tail[:-_TAIL_BYTES]
                    # Begin with a whole line, if there is one.
                    del self._tail[: self._tail.find(b"\n") + 1]
            # The end of the file stays readable.
            self._ignore()

    def _ignore(self) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(self._reader)


async def finish(task: asyncio.Task[Any], hurry: Callable[[], object]) -> None:
    """Wait until a task has ended, also if the caller is cancelled meanwhile.

    :param hurry: called if the task takes long.
    """
    cancelled: asyncio.CancelledError | None = None
    timeout: float | None = _CLOSE_SECONDS
    while not task.done():
        try:
            await asyncio.wait({task}, timeout=timeout)
        except asyncio.CancelledError as error:
            cancelled = error
        if not task.done():
            hurry()
            timeout = None
    if cancelled is not None:
        raise cancelled


async def _tools_of(client: Client) -> list[Tool]:
    tools: list[Tool] = []
    cursor: str | None = None
    while True:
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            return tools


def _is_refusal(error: BaseException) -> bool:
    """Whether the arguments are at fault, and not the server."""
    from mcp import MCPError
    from mcp_types import INVALID_PARAMS

    return isinstance(error, MCPError) and error.code == INVALID_PARAMS


def _is_closed(error: BaseException) -> bool:
    from mcp import MCPError
    from mcp_types import CONNECTION_CLOSED

    return isinstance(error, MCPError) and error.code == CONNECTION_CLOSED


def _kill_group(group: int) -> None:
    if sys.platform != "win32":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


@atexit.register
def _kill_groups() -> None:
    """End servers of an event loop that was abandoned."""
    for group in _groups:
        _kill_group(group)
