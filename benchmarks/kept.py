"""Results of single runs, kept in a file, so that an interrupted benchmark continues."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


class KeptResults:
    """Results by name.

    :param path: a file with a JSON object per line; None keeps nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, Any] = {}
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        if path is not None and path.exists():
            lines = path.read_text(encoding="utf-8").splitlines()
            self._known = {kept["run"]: kept["result"] for kept in map(json.loads, lines)}

    def get(self, run: str) -> Any:
        """Return the result of a run; None if it has not ended."""
        return self._known.get(run)

    def of(self, run: str, make: Callable[[], Any]) -> Any:
        """Return the result of a run, which is made and kept if it has not ended."""
        if (result := self.get(run)) is None:
            result = make()
            self.add(run, result)
        return result

    def add(self, run: str, result: object) -> None:
        """Keep the result of a run, which must be JSON and not None."""
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"run": run, "result": result}) + "\n")
