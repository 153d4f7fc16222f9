"""The metrics logger that is always enabled: a JSON line for each step and each evaluation."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from io import FileIO
from pathlib import Path

from ajet_core.errors import StoreError
from ajet_core.interfaces import MetricsLogger, WorkerContext
from ajet_core.protocol import Evaluation
from ajet_server.embedded.settings import JsonlLoggerSettings


class JsonlLogger(MetricsLogger[JsonlLoggerSettings]):
    """Appends ``{"step": 3, "loss": 0.1, ...}`` to ``<run_dir>/metrics.jsonl``.

    Evaluations are appended to ``evaluations.jsonl``. A step that is trained again after a crash
    is appended again, and so is an evaluation that gets more episodes: use the last line of a step
    (and of a client and tag). Numbers that JSON does not have (NaN, infinity) become null.
    """

    def __init__(self, settings: JsonlLoggerSettings, context: WorkerContext) -> None:
        super().__init__(settings, context)
        self._steps = _Lines(context.run_dir / settings.file)
        self._evaluations = _Lines(context.run_dir / settings.evaluations_file)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line; it is visible to other processes when this returns.

        The server calls this soon after a step was trained, on the logger's thread.

        :raises StoreError: the file cannot be written.
        """
        self._steps.append(
            {"step": step} | {k: _finite(v) for k, v in metrics.items() if k != "step"}
        )

    def log_evaluation(self, evaluation: Evaluation) -> None:
        """Append one line, as `log` does."""
        self._evaluations.append(evaluation.model_dump(mode="json"))

    def close(self) -> None:
        """Close the files."""
        self._steps.close()
        self._evaluations.close()


class _Lines:
    """A file of JSON lines, created with the first line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: FileIO | None = None

    def append(self, line: Mapping[str, object]) -> None:
        """Append one line.

        :raises StoreError: the file cannot be written.
        """
        text = json.dumps(line)
        try:
            if self._file is None:
                self._file = self._open()
            self._file.write(f"{text}\n".encode())
        except OSError as error:
            # The next opening ends a partly written line with a newline.
            self.close()
            raise StoreError(f"cannot append to {self._path}: {error}") from error

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> FileIO:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = FileIO(self._path, "a+")
        size = file.seek(0, 2)
        if size:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                # A process died while writing: do not append to its partial line.
                file.write(b"\n")
        return file


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
