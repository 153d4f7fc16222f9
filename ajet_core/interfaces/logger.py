"""The metrics logger: exports a run's metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Generic

from ajet_core.interfaces.context import SettingsT_co, WorkerContext
from ajet_core.protocol import Evaluation


class MetricsLogger(Generic[SettingsT_co], ABC):
    """Receives metrics of every finished step, in order, and evaluations, one call at a time."""

    def __init__(self, settings: SettingsT_co, context: WorkerContext) -> None:
        self.settings = settings
        self.context = context

    @abstractmethod
    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record one step; a step may be repeated when a run is resumed from a checkpoint."""

    def log_evaluation(self, evaluation: Evaluation) -> None:
        """Record results of evaluation episodes.

        The same client, tag and step may come again with more episodes. The default does nothing.
        """

    @abstractmethod
    def close(self) -> None:
        """Write pending metrics."""
