"""Which batches are not to be trained: those that the trainer refuses, and those that workers die of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from ajet_core.errors import AjetError, StepRefusedError
from ajet_core.protocol import FailureConfig


@dataclass(slots=True)
class Refusals:
    """Pure bookkeeping of what speaks against batches, and against the trainer.

    :ivar in_a_row: batches that were refused since one was trained for the first time.
    """

    config: FailureConfig
    in_a_row: int = 0
    _deaths: Counter[str] = field(default_factory=Counter)
    _trained_before: set[str] = field(default_factory=set)

    @property
    def too_many(self) -> bool:
        """Whether it is rather the trainer that somebody has to look at."""
        return self.in_a_row >= self.config.max_refused

    def lost(self, batch_ids: Iterable[str]) -> None:
        """Note batches that were trained by weights that are lost, and are to be trained again."""
        self._trained_before.update(batch_ids)

    def trained(self, batch_id: str) -> None:
        """Note a batch that was trained."""
        if batch_id in self._trained_before:
            # That it can be trained was known.
            self._trained_before.discard(batch_id)
        else:
            self.in_a_row = 0
        self._deaths.pop(batch_id, None)

    def died(self, batch_id: str, error: AjetError) -> StepRefusedError | None:
        """Note that a worker had to be replaced while it trained a batch, because of `error`.

        :return: why the batch is to be refused, once these were so many that it must be its fault.
        """
        self._deaths[batch_id] += 1
        if self._deaths[batch_id] < self.config.max_deaths:
            return None
        deaths = self._deaths.pop(batch_id)
        who = "1 worker" if deaths == 1 else f"{deaths} workers"
        # What follows the first line is the end of the worker's log.
        last = error.message.partition("\n")[0]
        return StepRefusedError(f"training the batch cost {who}, the last one: {last}")

    def spares(self, batch_id: str) -> bool:
        """Whether a batch is tried once more when somebody has looked at the trainer: it was trained before."""
        known = batch_id in self._trained_before
        self._trained_before.discard(batch_id)
        return known

    def refused(self) -> None:
        """Note a batch that is kept and not trained."""
        self.in_a_row += 1

    def forget(self) -> None:
        """Begin anew: somebody has looked after it."""
        self.in_a_row = 0
        self._deaths.clear()
