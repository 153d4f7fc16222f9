"""Where servers that are started listen, so that nobody else gets there."""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from functools import cached_property
from pathlib import Path


class SocketDirectory:
    """Unix sockets in a directory of this process's user alone.

    Whoever reaches a server that lets its weights be changed can make it load any directory. A port of loopback is everybody's on
    the machine: others reach it, and whoever binds it before the server does is told what is meant for the server.

    :param name: of the kind of server.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    @cached_property
    def _made(self) -> tempfile.TemporaryDirectory[str]:
        # Not in the run directory: names of sockets must be short.
        return tempfile.TemporaryDirectory(prefix=f"ajet-{self._name}-")

    @property
    def path(self) -> Path:
        """The directory; made when it is asked for first."""
        return Path(self._made.name)

    def new(self, number: int) -> Path:
        """Where the next server of replica `number` is to listen.

        Another name for each: the socket of one that was killed is left behind, also if it was killed while it booted.
        """
        return self.path / f"{number}-{secrets.token_hex(4)}.sock"

    def close(self) -> None:
        """Remove it, if it was made."""
        if "_made" in self.__dict__:
            # A server that was just killed may still be making files in it.
            with contextlib.suppress(OSError):
                self._made.cleanup()
