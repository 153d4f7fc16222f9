"""The components that a run uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ajet_core.interfaces import EndReason
from ajet_core.plugin import PluginManager
from ajet_installation.settings import ServerSettings
from ajet_server.admission.admission import Admission
from ajet_server.episodes.evaluations import Evaluations
from ajet_server.episodes.registry import EpisodeRegistry
from ajet_server.observe.events import EventLog
from ajet_server.observe.loop_watch import LoopWatch
from ajet_server.observe.metrics_loggers import MetricsLoggers
from ajet_server.spending.meter import SpendingMeter
from ajet_server.state import StateBoard
from ajet_server.store.run_store import RunStore
from ajet_server.workers.spare_worker import SpareWorker

if TYPE_CHECKING:
    from ajet_server.telemetry.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class RunParts:
    """The components that a run uses.

    :param clock: seconds, monotonic.
    :param wall_clock: Unix time in seconds.
    """

    settings: ServerSettings
    store: RunStore
    plugins: PluginManager
    board: StateBoard
    events: EventLog
    episodes: EpisodeRegistry
    admission: Admission
    evaluations: Evaluations
    loggers: MetricsLoggers
    watch: LoopWatch
    spending: SpendingMeter
    spare: SpareWorker
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    telemetry: Telemetry | None = None

    def report_evaluations(self) -> None:
        """Report evaluations whose episodes are over to event readers and loggers."""
        for evaluation in self.evaluations.completed():
            body = evaluation.model_dump(mode="json")
            self.events.emit("evaluation", body, evaluation.client_id)
            self.loggers.log_evaluation(evaluation)

    def finish_logs(self, reason: EndReason, message: str = "") -> None:
        """End the run for the metrics loggers; its last evaluations belong to it."""
        self.report_evaluations()
        self.loggers.finish(reason, message)

    @property
    def run_dir(self) -> Path:
        """The directory for everything that the run writes."""
        return self.settings.run_dir.resolve()
