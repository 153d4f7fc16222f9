"""The metrics logger that is always enabled: a JSON line for each record."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from io import FileIO
from pathlib import Path

from ajet_core.errors import StoreError
from ajet_core.interfaces import MetricsLogger, WorkerContext
from ajet_core.protocol import Evaluation, Finding
from ajet_server.embedded.settings import JsonlLoggerSettings


class JsonlLogger(MetricsLogger[JsonlLoggerSettings]):
    """Appends ``{"step": 3, "loss": 0.1, ...}`` to ``<run_dir>/metrics.jsonl``.

    Evaluations are appended to ``evaluations.jsonl``, findings to ``findings.jsonl`` and
    measurements of the machine to ``system.jsonl``. A step that is trained again after a crash
    is appended again, and so is an evaluation that gets more episodes: use the last line of a step
    (and of a client and tag). Numbers that JSON does not have (NaN, infinity) become null.
    """

    def __init__(self, settings: JsonlLoggerSettings, context: WorkerContext) -> None:
        super().__init__(settings, context)
        self._steps = _Lines(context.run_dir / settings.file)
        self._evaluations = _Lines(context.run_dir / settings.evaluations_file)
        self._findings = _Lines(context.run_dir / settings.findings_file)
        self._system = _Lines(context.run_dir / settings.system_file)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line; it is visible to other processes when this returns.

        The server calls this soon after a step was trained, on the logger's thread.

        :raises StoreError: the file cannot be written.
        """
        self._steps.append(_numbers({"step": step}, metrics))

    def log_evaluation(self, evaluation: Evaluation) -> None:
        """Append one line, as `log` does."""
        self._evaluations.append(evaluation.model_dump(mode="json"))

    def log_finding(self, step: int, finding: Finding) -> None:
        """Append one line, as `log` does."""
        self._findings.append({"step": step, **finding.model_dump(mode="json")})

    def log_system(self, at: float, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line, as `log` does."""
        self._system.append(_numbers({"at": at, "step": step}, metrics))

    def close(self) -> None:
        """Close the files."""
        for lines in (self._steps, self._evaluations, self._findings, self._system):
            lines.close()


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


def _numbers(first: Mapping[str, float], metrics: Mapping[str, float]) -> dict[str, float | None]:
    others = {name: value for name, value in metrics.items() if name not in first}
    return {**first, **{n: v if math.isfinite(v) else None for n, v in others.items()}}
