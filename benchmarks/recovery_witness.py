"""Trainers that carry in their checkpoints which batches their weights were trained on.

What the store says of steps is the server's own word; this list lives and dies with the weights, as the weights do.
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
    """Mixed into a trainer: a list of batches, in order, as a part of its state."""

    def __init__(self, settings: ComponentSettings, context: WorkerContext) -> None:
        super().__init__(settings, context)
        self._trained: list[tuple[str, list[str]]] = []

    def step(self, batch: TrainBatch) -> StepReport:
        """Train, then remember the batch."""
        report = super().step(batch)
        episodes = [episode.episode_id for episode in batch.episodes]
        self._trained.append((batch.batch_id, episodes))
        return report

    def save(self, directory: Path) -> None:
        """A checkpoint with the list in it."""
        super().save(directory)
        (directory / WITNESS_FILE).write_text(json.dumps(self._trained), encoding="utf-8")

    def load(self, directory: Path) -> None:
        """Undo `save`."""
        super().load(directory)
        self._trained = json.loads((directory / WITNESS_FILE).read_text(encoding="utf-8"))
