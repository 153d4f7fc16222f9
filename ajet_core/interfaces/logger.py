"""The metrics logger: exports a run's metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Literal

from ajet_core.interfaces.context import SettingsT_co, WorkerContext
from ajet_core.protocol import Evaluation, Finding, RunConfig

EndReason = Literal["done", "stopped", "failed", "interrupted"]
"""Why a run ended; one that was interrupted continues when its server is started again."""


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """What a metrics logger gets to know about a run.

    :param run_id: remains the same when the run is continued, also by another server process.
    :param config: with the model and all hyperparameters; secrets in settings are masked.
    :param resumed_step: number of steps that the weights were trained before; 0 for a new run.
    :param segment: how often the run has returned to a step before the last one that was logged,
        so that steps are repeated. New in hook API 1.5.
    """

    run_id: str
    config: RunConfig
    resumed_step: int
    segment: int = 0


class MetricsLogger(Generic[SettingsT_co], ABC):
    """Receives the metrics of every finished step, in order, and evaluations.

    It is created and called on a thread of its own, one call at a time: for each run `start`, then
    `log...`, then `finish`; at last `close`. Training does not wait for it: a full queue drops the
    oldest records, those of `log_system` first. A record for which it raises is lost, and this is
    logged. `start` and `finish` are new in hook API 1.3, `log_finding` and `log_system` in 1.5.
    """

    def __init__(self, settings: SettingsT_co, context: WorkerContext) -> None:
        self.settings = settings
        self.context = context

    def start(self, run: LoggedRun) -> None:
        """Begin a run, or continue one; if this raises, it is repeated before the next record."""

    @abstractmethod
    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record one step; a repeated step follows a `start` with a higher `segment`.

        :param metrics: read-only; ``docs/metrics.md`` lists names, units and meanings.
        """

    def log_evaluation(self, evaluation: Evaluation) -> None:
        """Record results of evaluation episodes.

        The same client, tag and step may come again with more episodes. The default does nothing.
        """

    def log_finding(self, step: int, finding: Finding) -> None:
        """Record a finding that has begun; ``docs/health.md`` and ``docs/faults.md`` list them.

        :param step: steps that have been trained. The default does nothing.
        """

    def log_system(self, at: float, step: int, metrics: Mapping[str, float]) -> None:
        """Record measurements of the server's machine, which are made at a period during a run.

        :param at: Unix time in seconds of the measurements.
        :param step: steps that have been trained; several records may have the same.
        :param metrics: read-only; names begin with ``system/``. The default does nothing.
        """

    def finish(self, reason: EndReason, message: str) -> None:
        """End a run whose `start` has returned; not called if the process is killed.

        :param message: the error of a run that failed, otherwise "".
        """

    @abstractmethod
    def close(self) -> None:
        """Write pending metrics; the server waits for at most `server.logger_close_seconds`."""
