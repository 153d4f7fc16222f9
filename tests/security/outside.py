"""Notices every attempt of any library to reach the network, a process or a program."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

_WATCHED = frozenset(
    {"socket.getaddrinfo", "socket.gethostbyname", "socket.connect", "socket.sendto"}
    | {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "pty.spawn"}
    | {"pickle.find_class", "import"}
)
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_attempts: list[str] | None = None


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if _attempts is None or event not in _WATCHED:
        return
    if event == "import":
        # Only modules that a model directory could bring in; libraries import their own lazily.
        if str(args[0]).startswith(("transformers_modules", "evil")):
            _attempts.append(f"import {args[0]}")
        return
    if event.startswith("socket."):
        address = args[0] if event in ("socket.getaddrinfo", "socket.gethostbyname") else args[1]
        host = address[0] if isinstance(address, tuple) else address
        if isinstance(host, bytes):
            host = host.decode()
        if host in _LOOPBACK or host is None or str(host).startswith("/"):
            return
        _attempts.append(f"{event} {host}")
        return
    _attempts.append(f"{event} {args[:2]}")


@contextlib.contextmanager
def watched() -> Iterator[list[str]]:
    """Attempts made while the block runs; those to this machine's own addresses are none."""
    global _attempts  # noqa: PLW0603 - an audit hook cannot be taken away again
    if not _hooked:
        sys.addaudithook(_hook)
        _hooked.append(True)
    found: list[str] = []
    _attempts = found
    try:
        yield found
    finally:
        _attempts = None


_hooked: list[bool] = []
