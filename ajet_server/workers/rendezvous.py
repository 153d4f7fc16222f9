"""A Unix socket in the run directory where a worker waits for the next server.

A server that is killed and restarted finds its workers there, with libraries imported and the model
loaded, and continues within a second or two. The socket exists only while a worker waits. Only
processes of the same user may connect.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

_PEER = struct.Struct("3i")  # pid, uid, gid
_MODE = 0o700
_BACKLOG = 16

SUPPORTED = sys.platform == "linux" and hasattr(os, "pidfd_open")
"""Whether workers can be found again; this requires pidfds, which only Linux has."""


def peer_pid(connection: socket.socket) -> int | None:
    """Return the id of the process at the other end, None unless it belongs to this user."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    pid, uid, _ = _PEER.unpack(data)
    return int(pid) if uid == os.getuid() else None


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """Provide a short name of `path`: a socket address holds only about a hundred bytes."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


async def wait_for_server(path: Path, seconds: float) -> socket.socket | None:
    """Return the connection of the next server, None if none connects in time."""
    loop = asyncio.get_running_loop()
    try:
        with _listening(path) as listener:
            async with asyncio.timeout(seconds):
                while True:
                    connection, _ = await loop.sock_accept(listener)
                    if peer_pid(connection) is not None:
                        return connection
                    connection.close()
    except OSError:
        # Either no server came in time, or none can: the run directory is full, gone, or on a file
        # system without sockets.
        return None


async def accepted(path: Path, listening: asyncio.Future[None]) -> AsyncIterator[socket.socket]:
    """Yield the connections of this user's processes to a Unix socket at `path`, without end.

    :param listening: set once processes can connect.
    :raises OSError: no socket can be made at `path`.
    """
    loop = asyncio.get_running_loop()
    with _listening(path) as listener:
        listening.set_result(None)
        while True:
            connection, _ = await loop.sock_accept(listener)
            if peer_pid(connection) is None:
                connection.close()
                continue
            yield connection


def connect(path: Path, pid: int | None = None) -> socket.socket:
    """Connect to the Unix socket of one of this user's processes at `path`.

    :param pid: the expected process, None for any.
    :raises OSError: it does not listen there.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)
    try:
        with _short(path) as name:
            connection.connect(name)
        if (peer := peer_pid(connection)) is None or pid not in (None, peer):
            raise PermissionError(f"{path} belongs to another process")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        path.parent.mkdir(mode=_MODE, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        with _short(path) as name:
            listener.bind(name)
        ours = path.stat().st_ino
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        try:
            yield listener
        finally:
            # Another worker may have replaced the socket.
            with contextlib.suppress(OSError):
                if path.stat().st_ino == ours:
                    path.unlink()


def find_worker(path: Path) -> tuple[socket.socket, int] | None:
    """Connect to the worker that waits at `path`; return the socket and process id, or None."""
    if not (SUPPORTED and path.is_socket()):
        return None
    try:
        # It does not block: a frozen worker accepts no connections, and its queue may be full.
        connection = connect(path)
    except OSError:
        return None
    pid = peer_pid(connection)
    assert pid is not None
    return connection, pid
