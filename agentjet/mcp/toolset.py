"""The tools of several MCP servers, for one episode at a time."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import importlib.util
import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pydantic_core import from_json

from agentjet.mcp.connection import ServerConnection, finish
from agentjet.mcp.content import text_of_result
from agentjet.mcp.sampling import Sample, Sampler
from agentjet.mcp.servers import HttpServer, McpServerError, Server
from ajet_core.errors import ConfigError

if TYPE_CHECKING:
    from mcp_types import Tool

_NAME_LENGTH = 64
"""The length that OpenAI-compatible endpoints allow for names of tools."""


class McpTools:
    """The tools of an episode, from `McpServers.tools`.

    :ivar definitions: the tools as the parameter ``tools`` of chat completions takes them. Other
        characters than letters, digits, underscores and hyphens become underscores. If several
        tools had the same name, their names begin with the server's name and an underscore.
    """

    def __init__(
        self,
        servers: McpServers,
        connections: Sequence[ServerConnection],
        sampler: Sampler | None = None,
    ) -> None:
        self._servers = servers
        self._sampler = sampler
        self._tools = _named([(c, tool) for c in connections for tool in c.tools])
        self.definitions: list[dict[str, Any]] = [
            {
                "type": "function",
                "function": {
                    "name": name,
                    "description": tool.description or "",
                    "parameters": tool.input_schema,
                },
            }
            for name, (_, tool) in self._tools.items()
        ]
        self._failure: McpServerError | None = None

    async def call(self, name: str, arguments: str | Mapping[str, Any] | None = None) -> str:
        """Call a tool and return its result as text.

        What the model caused is text as well, for the model to read: an unknown tool, arguments
        that are not a JSON object or that the server refuses, and errors that the tool reports
        (`StdioServer.tool_errors`). Images, audio and binary resources become placeholders such as
        ``[image: image/png, 68 bytes]``; structured content without text becomes JSON.

        :param name: a name in `definitions`.
        :param arguments: an object, or its JSON text.
        :raises McpServerError: a server failed, now or earlier in this episode, or is refused
            because it failed too often.
        :raises Exception: what a model call raised that a server requested.
        """
        self.check()
        if name not in self._tools:
            return f"Error: there is no tool {name!r}. The tools are: {', '.join(self._tools)}"
        try:
            text = arguments if isinstance(arguments, str) else json.dumps(dict(arguments or {}))
            # JSON of Python allows NaN and halves of characters, which cannot be sent.
            values = from_json(text or "{}", allow_inf_nan=False)
        except ValueError as error:
            return f"Error: the arguments of {name!r} are not valid JSON: {error}"
        if not isinstance(values, dict):
            return f"Error: the arguments of {name!r} are not a JSON object"
        connection, tool = self._tools[name]
        try:
            text = await self._servers._call(connection, tool.name, values, self._sampler)
        except McpServerError as error:
            self._failure = self._failure or error
            if self.failure is error:
                raise
        self.check()
        return text

    @property
    def failure(self) -> Exception | None:
        """The first failure in this episode, which ends it.

        It is that of a server (`McpServerError`), or of a model call that a server requested.
        """
        if self._sampler is not None and self._sampler.error is not None:
            return self._sampler.error
        return self._failure

    def check(self) -> None:
        """:raises Exception: the failure of this episode, if there is one."""
        failure = self.failure
        if isinstance(failure, McpServerError):
            raise failure.again()
        if failure is not None:
            raise failure


class McpServers:
    """MCP servers whose tools agents use.

    One object serves all episodes of an event loop. A server that fails costs the episodes that
    use it at that moment: `tools` and `McpTools.call` raise `McpServerError`, so that the episode
    is aborted. Programs and frameworks that catch the error cannot hide it, because the block of
    `tools` raises it again at its end.

    Use it with ``async with`` to end shared servers at the end of the block. Otherwise they end
    with the event loop.

    :param servers: with different names.
    :param ban_after: after so many failures of a server in a row, it is refused for a while, so
        that episodes do not wait for it; None to always try it. A call that is answered, and an
        episode without a failure, start the count again.
    :param ban_seconds: how long it is refused. After that, one more failure refuses it again.
    :param clock: seconds of a clock that never goes back.
    :raises ConfigError: two servers share a name, or the package ``mcp`` is missing.
    """

    def __init__(
        self,
        *servers: Server,
        ban_after: int | None = None,
        ban_seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        _check_installed()
        names = Counter(server.name for server in servers)
        if shared := sorted(name for name, count in names.items() if count > 1):
            raise ConfigError(f"two MCP servers have the name {shared[0]!r}")
        if ban_after is not None and ban_after < 1:
            raise ConfigError("ban_after must be at least 1")
        self._servers = servers
        self._bans = {s.name: _Ban(ban_after, ban_seconds, clock) for s in servers}
        self._shared: dict[str, asyncio.Task[ServerConnection]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    @contextlib.asynccontextmanager
    async def tools(
        self,
        env: Mapping[str, Mapping[str, str]] | None = None,
        *,
        sample: Sample | None = None,
    ) -> AsyncIterator[McpTools]:
        """Start the servers, or connect to those that are shared, for the length of the block.

        :param env: by name of a server, variables that it receives in this episode besides those
            of `StdioServer.env`. Name the episode's key here if a server needs it; no server
            receives it otherwise.
        :param sample: calls the model when a server asks for it, with messages of chat completions
            and a limit of tokens, and returns the answer. It runs in the context of this block, so
            its calls belong to the episode. If it raises, the block raises the same exception.
            Without it, and for shared servers, such requests fail.
        :raises McpServerError: a server did not start, is refused, or failed within the block.
        :raises ConfigError: `env` names a server that has no process for each episode.
        """
        servers = [self._with_env(server, (env or {}).get(server.name)) for server in self._servers]
        if unknown := sorted(set(env or {}) - set(self._bans)):
            raise ConfigError(f"there is no MCP server {unknown[0]!r}")
        own: list[ServerConnection] = []
        sampler = None if sample is None else Sampler(sample)
        try:
            results = await asyncio.gather(
                *(self._open(server, own, sampler) for server in servers), return_exceptions=True
            )
            connections = []
            for result in results:
                if isinstance(result, BaseException):
                    raise result
                connections.append(result)
            tools = McpTools(self, connections, sampler)
            try:
                yield tools
            except Exception as error:
                # Frameworks wrap errors of tools in ones that do not name the server.
                if tools.failure is None or error is tools.failure:
                    raise
                try:
                    tools.check()
                except McpServerError as failure:
                    raise failure from error
            tools.check()
            for ban in self._bans.values():
                ban.note_success()
        finally:
            await _close_all(own)

    async def aclose(self) -> None:
        """End the shared servers; a later `tools` starts them again."""
        tasks, self._shared = list(self._shared.values()), {}
        if self._loop is asyncio.get_running_loop():
            await _close_all([connection for task in tasks if (connection := await _of(task))])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def _with_env(self, server: Server, env: Mapping[str, str] | None) -> Server:
        if not env:
            return server
        if isinstance(server, HttpServer) or server.shared:
            raise ConfigError(
                f"MCP server {server.name!r} has no process for each episode, so it cannot receive "
                "the environment of one"
            )
        return replace(server, env={**server.env, **env})

    async def _open(
        self, server: Server, own: list[ServerConnection], sampler: Sampler | None
    ) -> ServerConnection:
        self._bans[server.name].check(server.name, None)
        if server.shared:
            return await self._open_shared(server)
        connection = ServerConnection(server, sampler)
        await self._start(connection)
        own.append(connection)
        return connection

    async def _open_shared(self, server: Server) -> ServerConnection:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None and not self._loop.is_closed():
                raise ConfigError(
                    "shared MCP servers are used in two event loops at once: create McpServers for "
                    "each of them"
                )
            # The servers ended with their loop.
            self._loop, self._shared = loop, {}
        task = self._shared.get(server.name)
        if task is None or (task.done() and not _is_alive(task)):
            task = self._shared[server.name] = asyncio.create_task(
                self._replace(server, task), context=contextvars.Context()
            )
        try:
            # Other episodes wait for the same start.
            return await asyncio.shield(task)
        except McpServerError as error:
            raise error.again() from error

    async def _replace(
        self, server: Server, before: asyncio.Task[ServerConnection] | None
    ) -> ServerConnection:
        if before is not None and (old := await _of(before)) is not None:
            await old.close()
        connection = ServerConnection(server)
        await self._start(connection)
        return connection

    async def _start(self, connection: ServerConnection) -> None:
        try:
            await connection.start()
        except McpServerError as error:
            self._bans[error.server].note_failure(error)
            raise

    async def _call(
        self,
        connection: ServerConnection,
        tool: str,
        arguments: dict[str, Any],
        sampler: Sampler | None,
    ) -> str:
        from mcp import MCPError

        server = connection.server
        ban = self._bans[server.name]
        ban.check(server.name, tool)
        try:
            result = await connection.call(tool, arguments)
        except McpServerError as error:
            # A server is not at fault if the model call failed that it needed.
            if not connection.counted and (sampler is None or sampler.error is None):
                ban.note_failure(error)
            connection.counted = connection.broken
            raise
        except MCPError as error:
            ban.note_success()
            return f"Error: {error.message}"
        text = text_of_result(result)
        model_failed = sampler is not None and sampler.error is not None
        if result.is_error and server.tool_errors == "raise" and not model_failed:
            reported = McpServerError(server.name, tool, f"the tool reported an error: {text}")
            ban.note_failure(reported)
            raise reported
        ban.note_success()
        return text


@dataclass
class _Ban:
    """Whether a server is refused."""

    after: int | None
    seconds: float
    clock: Callable[[], float]
    failures: int = 0
    until: float | None = None
    reason: str = ""

    def check(self, server: str, tool: str | None) -> None:
        """:raises McpServerError: the server is refused."""
        if self.until is None:
            return
        left = self.until - self.clock()
        if left > 0:
            raise McpServerError(
                server,
                tool,
                f"refused for another {left:.0f} s after {self.failures} failures in a row. The "
                f"last one: {self.reason}",
            )

    def note_failure(self, error: McpServerError) -> None:
        self.failures += 1
        if self.after is not None and self.failures >= self.after:
            self.until, self.reason = self.clock() + self.seconds, str(error)

    def note_success(self) -> None:
        self.failures, self.until = 0, None


def _named(
    tools: Sequence[tuple[ServerConnection, Tool]],
) -> dict[str, tuple[ServerConnection, Tool]]:
    """Give each tool a name that endpoints accept and no other tool has."""
    plain = [re.sub(r"[^A-Za-z0-9_-]", "_", tool.name)[:_NAME_LENGTH] for _, tool in tools]
    counts = Counter(plain)
    names: dict[str, tuple[ServerConnection, Tool]] = {}
    # A prefixed name must not take the plain name of another tool.
    taken = {name for name, count in counts.items() if count == 1}
    for name, (connection, tool) in zip(plain, tools, strict=True):
        if counts[name] == 1:
            names[name] = (connection, tool)
            continue
        prefixed = f"{connection.server.name}_{name}"
        candidate, number = prefixed[:_NAME_LENGTH], 1
        while candidate in taken:
            number += 1
            candidate = f"{prefixed[: _NAME_LENGTH - 1 - len(str(number))]}_{number}"
        taken.add(candidate)
        names[candidate] = (connection, tool)
    return names


def _is_alive(task: asyncio.Task[ServerConnection]) -> bool:
    return not task.cancelled() and task.exception() is None and task.result().is_alive()


async def _of(task: asyncio.Task[ServerConnection]) -> ServerConnection | None:
    """Return the connection of a start, or None if that failed."""
    await asyncio.wait({task})
    return None if task.cancelled() or task.exception() else task.result()


async def _close_all(connections: Sequence[ServerConnection]) -> None:
    async def close() -> None:
        await asyncio.gather(*(connection.close() for connection in connections))

    if connections:
        await finish(asyncio.create_task(close()), lambda: None)


def _check_installed() -> None:
    if importlib.util.find_spec("mcp") is None or importlib.util.find_spec("mcp_types") is None:
        raise ConfigError(
            "tools of MCP servers require the package mcp in version 2 or later: "
            "pip install 'agentjet[mcp]>=0.1'"
        )
