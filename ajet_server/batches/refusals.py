"""Which batches are not to be trained: those that the trainer refuses, and those that workers die of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from ajet_core.errors import AjetError, StepRefusedError
from ajet_core.protocol import FailureConfig


@dataclass(slots=True)
class Refusals:
    """Pure bookkeeping of what speaks against batches, against the clients whose episodes they have, and against the trainer.

    :ivar in_a_row: batches that were refused since one was trained for the first time.
    :ivar clients: those whose episodes these have.
    """

    config: FailureConfig
    in_a_row: int = 0
    clients: set[str] = field(default_factory=set)
    # By client: of the batches that it took part in, those in a row of which episodes of it were set aside, and the last.
    _against: Counter[str] = field(default_factory=Counter)
    _accused: dict[str, str] = field(default_factory=dict)
    _deaths: Counter[str] = field(default_factory=Counter)
    _trained_before: set[str] = field(default_factory=set)

    @property
    def too_many(self) -> bool:
        """Whether it is rather the trainer that somebody has to look at."""
        return self.in_a_row >= self.config.max_refused

    def lost(self, batch_ids: Iterable[str]) -> None:
        """Note batches that were trained by weights that are lost, and are to be trained again."""
        self._trained_before.update(batch_ids)

    def was_trained(self, batch_id: str) -> bool:
        """Whether a batch was trained before, by weights that are lost."""
        return batch_id in self._trained_before

    def trained(self, batch_id: str, clients: Iterable[str] = ()) -> None:
        """Note a batch that was trained.

        :param clients: whose episodes it has.
        """
        for client in clients:
            if self._accused.get(client) != batch_id:
                self.acquit(client)
        if batch_id in self._trained_before:
            # That it can be trained was known.
            self._trained_before.discard(batch_id)
        else:
            self._row_ends()
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

    def refused(self, clients: Set[str]) -> None:
        """Note a batch that is kept and not trained.

        :param clients: whose episodes it has.
        """
        self.in_a_row += 1
        self.clients |= clients

    def accuse(self, client: str, batch_id: str) -> bool:
        """Note that episodes of a client had to be set aside of a batch, or are all that a refused batch has.

        :return: whether this was so for as many batches in a row of those it took part in as may be refused.
        """
        if self._accused.get(client) != batch_id:
            self._accused[client] = batch_id
            self._against[client] += 1
        return self._against[client] >= self.config.max_refused

    def acquit(self, client: str) -> None:
        """Forget what speaks against a client."""
        del self._against[client]
        self._accused.pop(client, None)

    def blame(self, client: str) -> None:
        """A client is set aside: batches that were refused for its episodes alone say nothing about the trainer."""
        self.acquit(client)
        if self.clients <= {client}:
            self._row_ends()

    def forget(self) -> None:
        """Begin anew: somebody has looked after it."""
        self._row_ends()
        self._deaths.clear()
        self._against.clear()
        self._accused.clear()

    def _row_ends(self) -> None:
        self.in_a_row = 0
        self.clients.clear()
