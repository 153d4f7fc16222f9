"""Trainers whose checkpoints list the batches that their weights were trained on.

The store's record of steps comes from the server; this list is saved and lost together with the
weights.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from ajet_core.interfaces import ComponentSettings, StepReport, WorkerContext
from ajet_core.timeline import TrainBatch

if TYPE_CHECKING:
    from ajet_core.interfaces import Trainer as _Trainer
else:
    _Trainer = object

WITNESS_FILE = "witness.json"


class Witness(_Trainer):
    """Mixin for a trainer that adds a list of its batches, in order, to its state."""

    def __init__(self, settings: ComponentSettings, context: WorkerContext) -> None:
        super().__init__(settings, context)
        self._trained: list[tuple[str, list[str]]] = []

    def step(self, batch: TrainBatch) -> StepReport:
        """Train, then record the batch."""
        report = super().step(batch)
        episodes = [episode.episode_id for episode in batch.episodes]
        self._trained.append((batch.batch_id, episodes))
        return report

    def save(self, directory: Path) -> None:
        """Save a checkpoint with the list in it."""
        super().save(directory)
        (directory / WITNESS_FILE).write_text(json.dumps(self._trained), encoding="utf-8")

    def load(self, directory: Path) -> None:
        """Load a checkpoint and its list."""
        super().load(directory)
        self._trained = json.loads((directory / WITNESS_FILE).read_text(encoding="utf-8"))
