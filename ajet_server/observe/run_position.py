"""The last step that metrics loggers got, which is kept so that repeated steps are noticed."""

from __future__ import annotations

import json
from pathlib import Path

from ajet_core.files import write_whole


class RunPosition:
    """The last logged step of the last run, in a file.

    :param path: the file; it need not exist.
    :ivar step: the last logged step.
    :ivar segment: how often the run has returned to a step before the last logged one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._run_id = ""
        self.step = 0
        self.segment = 0

    def begin(self, run_id: str, step: int) -> int:
        """Begin a run, or continue it with what the file says, and return its segment.

        :param step: steps that the weights were trained before.
        """
        if run_id != self._run_id:
            self._run_id, self.step, self.segment = run_id, step, 0
            self._load()
        if step < self.step:
            self.segment += 1
        self.step = step
        return self.segment

    def reach(self, step: int) -> None:
        """Note a step that is logged next; if it is not a later one, the run has returned."""
        if step <= self.step:
            self.segment += 1
        self.step = step

    def save(self) -> None:
        """Write the file.

        :raises OSError: it cannot be written.
        """
        position = {"run_id": self._run_id, "step": self.step, "segment": self.segment}
        write_whole(self._path, json.dumps(position).encode())

    def _load(self) -> None:
        try:
            position = json.loads(self._path.read_text(encoding="utf-8"))
            if position["run_id"] == self._run_id:
                self.step, self.segment = int(position["step"]), int(position["segment"])
        except (OSError, ValueError, LookupError, TypeError):
            # A run that was not logged before, or a file that was damaged by hand.
            return
