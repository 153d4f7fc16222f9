"""Pass open connections between the processes of a server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_log = logging.getLogger("ajet.server")

# Longer data is passed as a file in memory, because a datagram's size is limited.
_INLINE_BYTES = 64 * 1024
_RETRY_SECONDS = 0.02
_GIVE_UP_SECONDS = 30.0
_MOST_WAITING = 4096
_BUFFER_BYTES = 4 * 1024 * 1024
# The most datagrams to read before the event loop serves others.
_AT_ONCE = 64

_CLIENT, _LINK, _STORED = b"C", b"L", b"S"

Take = Callable[[socket.socket, bytes], object]
"""Takes a client's connection, and the bytes of a request that were read from it."""
TakeLink = Callable[[socket.socket], object]
"""Takes a connection to another process of the server."""


def make_mailboxes(count: int) -> list[tuple[socket.socket, socket.socket]]:
    """Return the receiving and the sending end of one mailbox for each process.

    What was sent stays in a mailbox until a process reads it, also while that process restarts.
    """
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(count)]
    for _, sending in pairs:
        # As much as the system allows.
        sending.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    return pairs


@dataclass(frozen=True, slots=True)
class _Parcel:
    """A message to another process.

    :param until: event loop time after which it is dropped.
    """

    until: float
    text: bytes
    descriptors: list[int]

    def close(self) -> None:
        """Close the descriptors; those that were sent are open at the other end."""
        for descriptor in self.descriptors:
            os.close(descriptor)


class Mailboxes:
    """The mailboxes of all processes, as one of them sees them.

    :param own: the receiving end of this process.
    :param ends: the sending ends, by place.
    :ivar closed: whether `close` was called.
    """

    def __init__(self, own: socket.socket, ends: Sequence[socket.socket]) -> None:
        self._own = own
        self._ends = ends
        self._waiting: dict[int, deque[_Parcel]] = {}
        self.closed = False
        for end in (own, *ends):
            end.setblocking(False)

    def receive(self, take: Take, take_link: TakeLink = socket.socket.close) -> None:
        """Pass on what arrives, until `close`."""
        asyncio.get_running_loop().add_reader(self._own.fileno(), self._read, take, take_link)

    def close(self) -> None:
        """Stop receiving; what arrives from now on waits for the next process with this place."""
        self.closed = True
        asyncio.get_running_loop().remove_reader(self._own.fileno())

    def send(self, place: int, connection: int, data: bytes) -> None:
        """Pass a client's connection to the process at `place`.

        :param connection: its file descriptor, which the caller still has to close.
        :param data: what has been read of a request.
        """
        self._send(place, connection, _CLIENT + data)

    def send_link(self, place: int, connection: socket.socket) -> None:
        """Pass one end of a connection to another process, and close it in this one."""
        self._send(place, connection.fileno(), _LINK)
        connection.close()

    async def sent(self, seconds: float) -> None:
        """Wait until nothing waits for room in a mailbox, for some seconds at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while any(self._waiting.values()):  # noqa: ASYNC110 - it is retried as often
                    await asyncio.sleep(_RETRY_SECONDS)

    def _send(self, place: int, connection: int, text: bytes) -> None:
        loop = asyncio.get_running_loop()
        waiting = self._waiting.setdefault(place, deque())
        if len(waiting) >= _MOST_WAITING:
            _log.warning(
                "closed a connection: %d already wait for process %d", _MOST_WAITING, place
            )
            return
        descriptors = [os.dup(connection)]
        try:
            if len(text) > _INLINE_BYTES:
                descriptors.append(_stored(text[1:]))
                text = _STORED
        except OSError as error:
            _log.warning("closed a connection that could not be passed on: %s", error)
            os.close(descriptors[0])
            return
        parcel = _Parcel(loop.time() + _GIVE_UP_SECONDS, text, descriptors)
        if waiting or not self._sent(place, parcel):
            waiting.append(parcel)
            if len(waiting) == 1:
                loop.call_later(_RETRY_SECONDS, self._send_waiting, place)
        else:
            parcel.close()

    def _send_waiting(self, place: int) -> None:
        """Send what did not fit into a mailbox; its process may be restarting."""
        loop, waiting = asyncio.get_running_loop(), self._waiting[place]
        while waiting:
            if not self._sent(place, waiting[0]):
                if loop.time() < waiting[0].until:
                    loop.call_later(_RETRY_SECONDS, self._send_waiting, place)
                    return
                _log.warning(
                    "closed a connection: process %d did not accept it within %g s",
                    place,
                    _GIVE_UP_SECONDS,
                )
            waiting.popleft().close()

    def _sent(self, place: int, parcel: _Parcel) -> bool:
        """Send unless the mailbox is full, or too many descriptors are on their way."""
        try:
            socket.send_fds(self._ends[place], [parcel.text], parcel.descriptors)
        except OSError:
            return False
        return True

    def _read(self, take: Take, take_link: TakeLink) -> None:
        for _ in range(_AT_ONCE):
            try:
                text, descriptors, _, _ = socket.recv_fds(self._own, _INLINE_BYTES, 2)
            except BlockingIOError:
                return
            if not descriptors:
                # This process may open no more files.
                _log.warning("closed a connection: too many open files (ulimit -n)")
                continue
            for descriptor in descriptors:
                # A worker that is started must not hold connections open.
                os.set_inheritable(descriptor, False)
            connection = socket.socket(fileno=descriptors[0])
            if text == _LINK:
                take_link(connection)
                continue
            data = text[1:]
            if text == _STORED:
                with os.fdopen(descriptors[1], "rb") as file:
                    data = file.read()
            take(connection, data)


def _stored(data: bytes) -> int:
    """Return the descriptor of a file in memory that holds `data`, to be read from its start."""
    descriptor = os.memfd_create("request")
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
