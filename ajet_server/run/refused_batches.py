"""Quarantine batches or their episodes: the store keeps them, with the reason, untrained."""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import replace

from ajet_core.errors import DamagedRecordError, StepRefusedError
from ajet_core.interfaces import BatchRecord
from ajet_server.batches.refusals import Refusals
from ajet_server.batches.sharing import Sharing
from ajet_server.run.rollouts import Rollouts
from ajet_server.run.run_parts import RunParts

_log = logging.getLogger("ajet.server")

_SHOWN = 8


class RefusedBatches:
    """Quarantines batches and reports them.

    Too many in a row pause the run. If all of them belong to one client, and others share the run,
    that client is quarantined instead.

    :param refusals: counts the refused batches.
    :param rollouts: is paused, or continues without a client.
    """

    def __init__(
        self, parts: RunParts, refusals: Refusals, rollouts: Rollouts, sharing: Sharing
    ) -> None:
        self._store, self._events = parts.store, parts.events
        self._refusals = refusals
        self._rollouts = rollouts
        self._sharing = sharing

    async def refuse(self, record: BatchRecord, error: StepRefusedError) -> BatchRecord | None:
        """Quarantine a batch.

        :return: the batch if it was trained before. The trainer must then be at fault, so the
            batch stays to be trained and the run is paused.
        """
        if self._refusals.spares(record.batch_id):
            await self._rollouts.pause_itself(
                f"training batch {record.batch_id} now fails, although it was trained before "
                f"the last restart: {error.message}. Check the machine and the checkpoint; "
                "resuming the run retries the batch once"
            )
            return record
        clients = await self._clients(record.episode_ids)
        reason = _reason(clients, error)
        await self._store.refuse_batch(record, reason)
        self._refusals.refused(clients.keys())
        self._tell(replace(record, refused=reason), error)
        if len(clients) == 1:
            # In a batch of several clients, it is not known whose episodes are at fault.
            self._accuse(record.batch_id, clients.keys(), error)
        if self._refusals.too_many:
            await self._rollouts.pause_itself(
                f"{self._refusals.in_a_row} batches in a row could not be trained. Reason "
                f"for the last one: {reason}. The batches are kept: `ajet inspect --refused` "
                "shows their episodes"
            )
        return None

    async def divide(self, record: BatchRecord, error: StepRefusedError) -> bool:
        """Divide a batch of several clients into one for each client, to find whose fails.

        :return: whether it had several clients.
        """
        parts: dict[str, list[str]] = {}
        for episode_id in record.episode_ids:
            parts.setdefault(await self._client(episode_id), []).append(episode_id)
        if len(parts) < 2:
            return False
        await self._store.divide_batch(record, list(parts.values()))
        _log.error(
            "batch %s is trained in %d parts, one for each client: %s",
            record.batch_id,
            len(parts),
            error.message,
        )
        return True

    async def leave_out(
        self, record: BatchRecord, culprits: Set[str], error: StepRefusedError
    ) -> BatchRecord:
        """Quarantine some episodes of a batch, as a separate refused batch.

        :return: the batch without them.
        """
        kept, clients = await self._split(record, culprits, error)
        self._accuse(record.batch_id, clients.keys(), error)
        return kept

    async def are_one_clients(self, episode_ids: Iterable[str]) -> bool:
        """Return whether these episodes belong to one client, and others share the run."""
        clients = await self._clients(episode_ids)
        return len(clients) == 1 and self._sharing.others(clients.keys())

    async def without_quarantined(self, record: BatchRecord) -> BatchRecord | None:
        """Refuse the batch's episodes of quarantined clients.

        :return: the batch without them, None if it has no others.
        """
        clients = self._rollouts.quarantined_clients
        if not clients or self._refusals.was_trained(record.batch_id):
            return record
        theirs = {i for i in record.episode_ids if await self._client(i) in clients}
        error = StepRefusedError("the client of these episodes is quarantined")
        if len(theirs) < len(record.episode_ids):
            return (await self._split(record, theirs, error))[0] if theirs else record
        reason = _reason(await self._clients(theirs), error)
        await self._store.refuse_batch(record, reason)
        self._tell(replace(record, refused=reason), error)
        return None

    async def _split(
        self, record: BatchRecord, culprits: Set[str], error: StepRefusedError
    ) -> tuple[BatchRecord, Counter[str]]:
        """Return the batch without some episodes, and how many of these each client has."""
        clients = await self._clients(culprits)
        quarantined = BatchRecord(
            batch_id=secrets.token_hex(8),
            step=record.step,
            episode_ids=[i for i in record.episode_ids if i in culprits],
            created_at=record.created_at,
            refused=_reason(clients, error),
        )
        await self._store.split_batch(record, quarantined)
        self._tell(quarantined, error)
        kept = [i for i in record.episode_ids if i not in culprits]
        return replace(record, episode_ids=kept), clients

    def _accuse(self, batch_id: str, clients: Iterable[str], error: StepRefusedError) -> None:
        """Quarantine clients whose episodes failed too often, unless no other shares the run."""
        for client in clients:
            if self._refusals.accuse(client, batch_id) and self._sharing.others({client}):
                self._refusals.blame(client)
                self._rollouts.quarantine_client(client, error.message)

    async def _clients(self, episode_ids: Iterable[str]) -> Counter[str]:
        """Count the episodes of each client."""
        counts: Counter[str] = Counter()
        for episode_id in episode_ids:
            counts[await self._client(episode_id)] += 1
        return counts

    async def _client(self, episode_id: str) -> str:
        try:
            episode = await self._store.get_episode(episode_id)
        except DamagedRecordError:
            # The damaged record may be the reason for the quarantine of the episode.
            return "unknown"
        return episode.client_id if episode is not None else "unknown"

    def _tell(self, record: BatchRecord, error: StepRefusedError) -> None:
        _log.error("batch %s was refused: %s", record.batch_id, record.refused)
        self._events.emit(
            "refused",
            {
                "batch_id": record.batch_id,
                "step": record.step,
                "episodes": len(record.episode_ids),
                "reason": record.refused,
                "error": error.to_payload(),
            },
        )


def _reason(clients: Counter[str], error: StepRefusedError) -> str:
    """Return why episodes are not trained, and which clients they belong to."""
    whose = ", ".join(f"{n} of client {client}" for client, n in clients.most_common(_SHOWN))
    more = ", and others" if len(clients) > _SHOWN else ""
    return f"{error.message} (episodes: {whose or 'none'}{more})"
