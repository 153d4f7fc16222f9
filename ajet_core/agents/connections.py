"""Connections to swarm servers for rerouted requests, shared by all clients of a program.

The program's own clients are not used for them: they have proxies, credentials and hooks for another endpoint, each has its own
pool, and an asynchronous one that has served one event loop fails in the next.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import threading
from typing import Any
from weakref import WeakKeyDictionary


class Connections:
    """Clients of one HTTP library.

    :param library: ``httpx`` or ``httpx2``: its clients send its requests.
    """

    def __init__(self, library: str) -> None:
        self._library = library
        self._lock = threading.Lock()
        self._pid = 0
        self._sync: Any = None
        self._of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = WeakKeyDictionary()

    def sync(self) -> Any:
        """The ``Client``, which threads share; a forked process has its own."""
        if self._pid != os.getpid():
            with self._lock:
                if self._pid != os.getpid():
                    self._sync = self._new("Client")
                    self._pid = os.getpid()
        return self._sync

    def asynchronous(self) -> Any:
        """The ``AsyncClient`` of the event loop that runs."""
        loop = asyncio.get_running_loop()
        client = self._of_loop.get(loop)
        if client is None:
            client = self._of_loop[loop] = self._new("AsyncClient")
        return client

    async def close(self) -> None:
        """Close those of the event loop that runs; the next request opens others."""
        client = self._of_loop.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    def _new(self, kind: str) -> Any:
        module = importlib.import_module(self._library)
        # As many as there are requests: how many that are is the program's business.
        limits = module.Limits(
            max_connections=None, max_keepalive_connections=64, keepalive_expiry=3.0
        )
        return getattr(module, kind)(limits=limits)
