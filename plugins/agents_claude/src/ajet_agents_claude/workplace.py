"""The directory of an episode: what Claude Code would otherwise keep in the user's home."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from agentjet.agents import Route


class Workplace:
    """A directory and the processes that use it, until the episode ends.

    :ivar path: the directory.
    :ivar home: the processes' home.
    :ivar work: where they work if the program does not say.
    """

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="ajet-claude-"))
        self.home, self.work = self.path / "home", self.path / "work"
        for directory in (self.home, self.work, self.path / "tmp"):
            directory.mkdir()
        self._transports: list[Any] = []

    def environ(self) -> dict[str, str]:
        """Return the variables that name its parts."""
        return {
            "HOME": str(self.home),
            "CLAUDE_CONFIG_DIR": str(self.home / ".claude"),
            "CLAUDE_CODE_TMPDIR": str(self.path / "tmp"),
        }

    def write_settings(self, settings: object) -> str:
        """Write the settings of one process to a file, and return its path.

        Arguments of a process, unlike its files, are visible to other users.
        """
        descriptor, path = tempfile.mkstemp(suffix=".json", dir=self.path)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(settings, file)
        return path

    def add(self, transport: Any) -> None:
        """Add a process that is about to start, by its transport."""
        self._transports.append(transport)

    def close(self) -> None:
        """End processes that still run, and remove the directory."""
        for transport in self._transports:
            process = transport._process
            if process is not None and process.returncode is None:
                _kill(process)
        self._transports.clear()
        shutil.rmtree(self.path, ignore_errors=True)


def workplace_of(route: Route) -> Workplace:
    """Return the workplace of an episode, which is made on first use."""
    with _lock:
        if (place := _places.get(route)) is None:
            place = _places[route] = Workplace()
            route.at_end(place.close)
        return place


_places: WeakKeyDictionary[Route, Workplace] = WeakKeyDictionary()
_lock = threading.Lock()


def _kill(process: Any) -> None:
    """Kill a process and wait until it writes no more; its event loop reaps it."""
    with suppress(ProcessLookupError, ChildProcessError):
        process.kill()
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
