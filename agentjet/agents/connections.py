"""Connections of one episode to its server, for rerouted requests.

The program's own clients cannot be used: they have proxies, credentials and hooks for another
endpoint, and an asynchronous client that has served one event loop fails in the next. Each episode
has separate connections, so that closing one does not affect another.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import os
import threading
from typing import Any
from urllib.parse import urlsplit

from ajet_core.credentials import LOOPBACK_HOSTS

_TRUSTED = ("SSL_CERT_FILE", "SSL_CERT_DIR")


class Connections:
    """Clients of httpx and httpx2 for one episode, created on first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sync: dict[tuple[str, bool, int], Any] = {}
        self._of_loop: dict[tuple[str, bool, asyncio.AbstractEventLoop], Any] = {}

    def sync(self, library: str, url: str) -> Any:
        """Return a ``Client`` of a library. Threads share it; a forked process gets another."""
        key = (library, _is_here(url), os.getpid())
        with self._lock:
            if key not in self._sync:
                self._sync[key] = _new(library, "Client", url)
            return self._sync[key]

    def asynchronous(self, library: str, url: str) -> Any:
        """Return an ``AsyncClient`` of a library for the running event loop."""
        key = (library, _is_here(url), asyncio.get_running_loop())
        with self._lock:
            if key not in self._of_loop:
                self._of_loop[key] = _new(library, "AsyncClient", url)
            return self._of_loop[key]

    def close(self) -> None:
        """Close the synchronous clients; asynchronous ones end with their event loops."""
        with self._lock:
            sync, self._sync, self._of_loop = self._sync, {}, {}
        for (_, _, pid), client in sync.items():
            if pid == os.getpid():
                client.close()

    async def aclose(self) -> None:
        """Close the synchronous clients and those of the running event loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            mine = [client for key, client in self._of_loop.items() if key[2] is loop]
        for client in mine:
            await client.aclose()
        await asyncio.to_thread(self.close) if self._sync else self.close()


def _is_here(url: str) -> bool:
    return urlsplit(url).hostname in LOOPBACK_HOSTS


def _new(library: str, kind: str, url: str) -> Any:
    module = importlib.import_module(library)
    limits = module.Limits(max_connections=None, keepalive_expiry=3.0)
    # Proxies from the environment must not be used for this machine.
    return getattr(module, kind)(
        limits=limits,
        trust_env=not _is_here(url),
        verify=_certificates(library, *map(os.environ.get, _TRUSTED)),
    )


@functools.cache
def _certificates(library: str, *trusted: str | None) -> Any:  # noqa: ARG001
    """Return an SSL context, cached for each location of certificates because loading is slow."""
    return importlib.import_module(library).create_ssl_context()
