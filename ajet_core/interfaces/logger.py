"""The metrics logger: sends what a run measures somewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from ajet_core.interfaces.context import ComponentSettings, WorkerContext


class MetricsLogger(ABC):
    """Receives the metrics of every finished step, in order, from one thread."""

    def __init__(self, settings: ComponentSettings, context: WorkerContext) -> None:
        self.settings = settings
        self.context = context

    @abstractmethod
    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record one step; a step may come again when a run is resumed from a checkpoint."""

    @abstractmethod
    def close(self) -> None:
        """Write what is pending."""
