"""Sockets that listen in the network namespace of a box, served from outside.

Nothing runs inside for it: a socket stays in the namespace in which it was created, whichever
process accepts its connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Mapping

from ajet_core.errors import SandboxError
from ajet_core.interfaces import Serve
from ajet_exec.boxes import visiting

MOST_CONNECTIONS = 64
"""How many connections of a port of a box exist at once; more are reset."""
_RETRY_SECONDS = 0.1


def listen_in(pid: int, port: int) -> socket.socket:
    """Return a socket that listens on a port of loopback in the network of a process.

    :raises SandboxError: that cannot be done.
    """
    try:
        return _by_thread(pid, port) if os.geteuid() == 0 else _by_process(pid, port)
    except OSError as error:
        raise SandboxError(f"cannot listen on port {port} in the sandbox: {error}") from error


def _by_thread(pid: int, port: int) -> socket.socket:
    results: list[socket.socket | OSError] = []

    def visit() -> None:
        try:
            visiting.enter_network(pid, as_owner=False)
            results.append(visiting.listener(port))
        except OSError as error:
            results.append(error)

    thread = threading.Thread(target=visit)
    thread.start()
    thread.join()
    if isinstance(results[0], OSError):
        raise results[0]
    return results[0]


def _by_process(pid: int, port: int) -> socket.socket:
    """Do it in a process of its own: only one with a single thread may enter a user namespace."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        visitor = [sys.executable, "-I", "-S", visiting.__file__]
        done = subprocess.run(  # noqa: S603 - this interpreter
            [*visitor, str(pid), str(port), str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise OSError(done.stderr.strip().rpartition("\n")[2])
        descriptors = socket.recv_fds(ours, 1, 1)[1]
    return socket.socket(fileno=descriptors[0])


@contextlib.asynccontextmanager
async def serving(pid: int, endpoints: Mapping[int, Serve]) -> AsyncIterator[None]:
    """Serve endpoints in the network of a process until the block ends."""
    async with contextlib.AsyncExitStack() as stack:
        for port, serve in endpoints.items():
            listening = await asyncio.to_thread(listen_in, pid, port)
            await stack.enter_async_context(_served(listening, serve))
        yield


@contextlib.asynccontextmanager
async def _served(listening: socket.socket, serve: Serve) -> AsyncIterator[None]:
    connections: set[asyncio.Task[None]] = set()
    listening.setblocking(False)
    accepting = asyncio.create_task(_accept(listening, serve, connections))
    try:
        yield
    finally:
        accepting.cancel()
        await asyncio.gather(accepting, return_exceptions=True)
        listening.close()
        for task in list(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _accept(
    listening: socket.socket, serve: Serve, connections: set[asyncio.Task[None]]
) -> None:
    """Serve connections, and refuse those above the limit.

    They are accepted one by one, so that a program cannot use up the caller's descriptors.
    """
    loop = asyncio.get_running_loop()
    while True:
        try:
            accepted, _ = await loop.sock_accept(listening)
        # The program has left its connection, or the caller has no descriptors at the moment.
        except OSError:
            await asyncio.sleep(_RETRY_SECONDS)
            continue
        if len(connections) >= MOST_CONNECTIONS:
            # It gets a reset.
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            accepted.close()
            # `sock_accept` does not wait while others are in line.
            await asyncio.sleep(0)
            continue
        connection = asyncio.create_task(_serve(accepted, serve))
        connections.add(connection)
        connection.add_done_callback(connections.discard)
        await asyncio.sleep(0)


async def _serve(accepted: socket.socket, serve: Serve) -> None:
    # A connection ends in many ways, which concern only the two ends.
    with contextlib.suppress(OSError, asyncio.CancelledError):
        try:
            reader, writer = await asyncio.open_connection(sock=accepted)
        except BaseException:
            accepted.close()
            raise
        try:
            await serve(reader, writer)
        finally:
            writer.close()
