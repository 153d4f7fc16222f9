"""Sockets of started servers, which other users cannot access."""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from functools import cached_property
from pathlib import Path


class SocketDirectory:
    """A directory of Unix sockets that only this process's user can access.

    A client that can change a server's weights can make it load any directory. Loopback ports are
    not safe: other users of the machine can connect to them, or bind them before the server does
    and receive its requests.

    :param name: name of the kind of server.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    @cached_property
    def _made(self) -> tempfile.TemporaryDirectory[str]:
        # Not in the run directory, because names of sockets must be short.
        return tempfile.TemporaryDirectory(prefix=f"ajet-{self._name}-")

    @property
    def path(self) -> Path:
        """The directory, created on first use."""
        return Path(self._made.name)

    def new(self, number: int) -> Path:
        """Return a new socket path for a server of replica `number`.

        Names are unique, because killed servers leave their sockets behind.
        """
        return self.path / f"{number}-{secrets.token_hex(4)}.sock"

    def close(self) -> None:
        """Remove the directory if it was created."""
        if "_made" in self.__dict__:
            # A server that was just killed may still be creating files in it.
            with contextlib.suppress(OSError):
                self._made.cleanup()
