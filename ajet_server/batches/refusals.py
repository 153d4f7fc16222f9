"""Decide which batches not to train: those the trainer refuses, and those that crash workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from ajet_core.errors import AjetError, StepRefusedError
from ajet_core.protocol import FailureConfig


@dataclass(slots=True)
class Refusals:
    """Counts failures of batches, of the clients whose episodes they contain, and of the trainer.

    :ivar in_a_row: batches refused since a batch was last trained for the first time.
    :ivar clients: the clients with episodes in these batches.
    """

    config: FailureConfig
    in_a_row: int = 0
    clients: set[str] = field(default_factory=set)
    # By client: how many batches in a row, of those with its episodes, had some of its episodes
    # quarantined; and the last such batch.
    _against: Counter[str] = field(default_factory=Counter)
    _accused: dict[str, str] = field(default_factory=dict)
    _deaths: Counter[str] = field(default_factory=Counter)
    _trained_before: set[str] = field(default_factory=set)

    @property
    def too_many(self) -> bool:
        """Whether so many batches were refused that the trainer needs inspection."""
        return self.in_a_row >= self.config.max_refused

    def lost(self, batch_ids: Iterable[str]) -> None:
        """Record batches whose trained weights were lost, and which must be trained again."""
        self._trained_before.update(batch_ids)

    def was_trained(self, batch_id: str) -> bool:
        """Return whether a batch was trained before, by weights that are lost."""
        return batch_id in self._trained_before

    def trained(self, batch_id: str, clients: Iterable[str] = ()) -> None:
        """Record a batch that was trained.

        :param clients: the clients with episodes in it.
        """
        for client in clients:
            if self._accused.get(client) != batch_id:
                self.acquit(client)
        if batch_id in self._trained_before:
            # It was known to be trainable, so it says nothing new about the trainer.
            self._trained_before.discard(batch_id)
        else:
            self._row_ends()
        self._deaths.pop(batch_id, None)

    def died(self, batch_id: str, error: AjetError) -> StepRefusedError | None:
        """Record that a worker had to be replaced because of `error` while it trained a batch.

        :return: why to refuse the batch, once the number of such failures reaches the limit.
        """
        self._deaths[batch_id] += 1
        if self._deaths[batch_id] < self.config.max_deaths:
            return None
        deaths = self._deaths.pop(batch_id)
        who = "1 worker" if deaths == 1 else f"{deaths} workers"
        # The rest of the message is the end of the worker's log.
        last = error.message.partition("\n")[0]
        return StepRefusedError(f"{who} died while training the batch; the last failure: {last}")

    def spares(self, batch_id: str) -> bool:
        """Return whether to retry a batch once the run is resumed: it was trained before."""
        known = batch_id in self._trained_before
        self._trained_before.discard(batch_id)
        return known

    def refused(self, clients: Set[str]) -> None:
        """Record a batch that is kept and not trained.

        :param clients: the clients with episodes in it.
        """
        self.in_a_row += 1
        self.clients |= clients

    def accuse(self, client: str, batch_id: str) -> bool:
        """Record that a client's episodes were quarantined, or are all that a refused batch has.

        :return: whether this reached the limit of batches in a row with episodes of the client.
        """
        if self._accused.get(client) != batch_id:
            self._accused[client] = batch_id
            self._against[client] += 1
        return self._against[client] >= self.config.max_refused

    def acquit(self, client: str) -> None:
        """Clear the record of a client."""
        del self._against[client]
        self._accused.pop(client, None)

    def blame(self, client: str) -> None:
        """Record that a client is quarantined: batches with only its episodes no longer count."""
        self.acquit(client)
        if self.clients <= {client}:
            self._row_ends()

    def forget(self) -> None:
        """Reset all counts after an operator has intervened."""
        self._row_ends()
        self._deaths.clear()
        self._against.clear()
        self._accused.clear()

    def _row_ends(self) -> None:
        self.in_a_row = 0
        self.clients.clear()
