"""A trainer whose steps take a given time, like those of a large model, on any machine."""

from __future__ import annotations

import time

from ajet_backend_torch.trainer import TorchTrainer
from altered_plugin import WaitingSettings

from ajet_core.interfaces import StepReport, WeightUpdate, WorkerContext
from ajet_core.timeline import TrainBatch


class WaitingTrainer(TorchTrainer):
    """The torch trainer, which sleeps at the end of a step until its time is over."""

    def __init__(self, settings: WaitingSettings, context: WorkerContext) -> None:
        super().__init__(settings, context)
        self._share, self._seconds = settings.share, settings.seconds
        self._published_at = time.monotonic()

    def step(self, batch: TrainBatch) -> StepReport:
        """Train, then wait."""
        began = time.monotonic()
        report = super().step(batch)
        seconds = self._seconds
        if seconds is None and self._share is not None:
            seconds = self._share / (1 - self._share) * (began - self._published_at)
        time.sleep(max(0.0, began + (seconds or 0.0) - time.monotonic()))
        return report

    def publish(self, channel: str, policy_version: int) -> WeightUpdate:
        """Publish, and record the time, at which rollouts start."""
        update = super().publish(channel, policy_version)
        self._published_at = time.monotonic()
        return update
