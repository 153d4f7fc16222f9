"""The logger ``trackio``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ajet_core.errors import PluginError
from ajet_core.interfaces import EndReason, LoggedRun, MetricsLogger, WorkerContext
from ajet_core.protocol import Evaluation, Finding
from ajet_loggers.tracking import evaluation_metrics, tracker_id
from ajet_loggers_trackio.settings import TrackioSettings


class TrackioLogger(MetricsLogger[TrackioSettings]):
    """Writes a run of Trackio for each segment of a run; they are in one group.

    It calls Trackio's storage. `trackio.init` would keep a queue of its own, measure the machine a
    second time, and turn errors of writing into warnings, so that no finding would report them.

    :raises PluginError: the process uses Trackio with another directory.
    """

    def __init__(self, settings: TrackioSettings, context: WorkerContext) -> None:
        super().__init__(settings, context)
        self._storage = _storage((context.run_dir / settings.directory).resolve())
        self._id = self._name = ""
        self._config: dict[str, Any] | None = None

    def start(self, run: LoggedRun) -> None:
        """Begin a run of Trackio, or continue it; it exists once it has a record."""
        self._id = tracker_id(run)
        name = self.settings.name
        self._name = self._id.replace(run.run_id, name) if name else self._id
        self._config = {**run.config.model_dump(mode="json"), "_Group": run.run_id}

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one step."""
        self._storage.bulk_log(
            self.settings.project,
            self._name,
            [dict(metrics)],
            steps=[step],
            config=self._config,
            run_id=self._id,
        )
        self._config = None

    def log_evaluation(self, evaluation: Evaluation) -> None:
        """Write an evaluation."""
        self.log(evaluation.step, evaluation_metrics(evaluation))

    def log_finding(self, step: int, finding: Finding) -> None:
        """Write an alert."""
        self._alert(finding.code, finding.message, "warn", step)

    def log_system(self, at: float, step: int, metrics: Mapping[str, float]) -> None:  # noqa: ARG002
        """Write measurements, which Trackio shows over time, without steps."""
        self._storage.bulk_log_system(
            self.settings.project,
            self._name,
            [dict(metrics)],
            timestamps=[datetime.fromtimestamp(at, UTC).isoformat()],
            run_id=self._id,
        )

    def finish(self, reason: EndReason, message: str) -> None:
        """Write an alert with the end of a run that failed."""
        if reason == "failed":
            self._alert("run failed", message, "error", None)

    def close(self) -> None:
        """Do nothing: each record was written at once."""

    def _alert(self, title: str, text: str, level: str, step: int | None) -> None:
        self._storage.bulk_alert(
            self.settings.project, self._name, [title], [text], [level], [step], run_id=self._id
        )


def _storage(directory: Path) -> Any:
    """Import Trackio's storage, which takes its directory from the environment at that time."""
    before = os.environ.get("TRACKIO_DIR")
    os.environ["TRACKIO_DIR"] = str(directory)
    try:
        from trackio import utils
        from trackio.sqlite_storage import SQLiteStorage
    finally:
        if before is None:
            del os.environ["TRACKIO_DIR"]
        else:
            os.environ["TRACKIO_DIR"] = before
    used = Path(utils.TRACKIO_DIR).resolve()
    if used != directory:
        raise PluginError(
            f"this process uses Trackio with the directory {used}, so the logger 'trackio' cannot "
            f"use {directory}: it needs a server process of its own"
        )
    return SQLiteStorage
