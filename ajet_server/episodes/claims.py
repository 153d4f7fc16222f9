"""Claims: long-poll for an episode, grant each claim once, and store it."""

from __future__ import annotations

import asyncio
import contextlib

from ajet_core.errors import AjetError, EpisodeClosedError, ForbiddenError, StoreError
from ajet_core.protocol import ClaimRequest
from ajet_server.admission.admission import Admission
from ajet_server.admission.waiting import Granted
from ajet_server.episodes.registry import EpisodeRegistry, closed_message
from ajet_server.security.api_keys import hash_secret, new_episode_key
from ajet_server.store.run_store import RunStore


class ClaimDesk:
    """Answers claims with episodes that `Admission` has a slot for, each claim once."""

    def __init__(self, store: RunStore, episodes: EpisodeRegistry, admission: Admission) -> None:
        self._store = store
        self._episodes = episodes
        self._admission = admission
        # Episodes whose record is being written, by claim hash.
        self._beginning: dict[str, asyncio.Future[Granted]] = {}
        self._abandoned: set[asyncio.Future[None]] = set()

    async def claim(self, request: ClaimRequest, client_id: str) -> Granted:
        """Claim an episode; wait for a slot for up to `request.wait_seconds`.

        A repeated claim returns the same episode, in case the first response was lost.

        :raises EpisodeClosedError: the claim was granted before, and its episode is over.
        :raises NotRollingError: no run is active, or no slot became free in time.
        :raises BusyError: a limit on open episodes or waiting claims is reached.
        :raises EpisodeError: the task is quarantined, or its tag is not in the mixture.
        """
        again = await self._granted_before(request, client_id)
        if again is not None:
            return again
        granted = await self._admission.wait_for_slot(request, client_id)
        claim = granted.record.claim_hash
        if (begun := self._beginning.get(claim)) is not None:
            # Two identical claims at once: the other one already has its episode.
            self._admission.withdraw(granted.record)
            return _own(await asyncio.shield(begun), client_id)
        begun = asyncio.ensure_future(self._begin(granted))
        if claim:
            self._beginning[claim] = begun
            begun.add_done_callback(lambda _: self._beginning.pop(claim, None))
        try:
            return await asyncio.shield(begun)
        except StoreError:
            again = await self._granted_before(request, client_id)
            if again is not None:
                return again
            raise
        except asyncio.CancelledError:
            # The write completes even though the client is gone. A client with a claim id may
            # claim the episode again until its lease expires.
            if not claim:
                abandoned = asyncio.ensure_future(self._abandon(begun))
                self._abandoned.add(abandoned)
                abandoned.add_done_callback(self._abandoned.discard)
            raise

    async def _granted_before(self, request: ClaimRequest, client_id: str) -> Granted | None:
        if request.claim_id is None:
            return None
        claim = hash_secret(request.claim_id)
        if (begun := self._beginning.get(claim)) is not None:
            return _own(await asyncio.shield(begun), client_id)
        if (adopted := await self._store.adopt(claim)) is not None:
            self._episodes.adopt(adopted)
        record = await self._store.claimed(claim)
        if record is None:
            return None
        granted = _own(
            Granted(record, new_episode_key(record.episode_id, request.claim_id)), client_id
        )
        if self._episodes.renew(record.episode_id) is None:
            raise EpisodeClosedError(closed_message(record))
        return granted

    async def _begin(self, granted: Granted) -> Granted:
        await self._episodes.begin_episode(granted.record)
        return granted

    async def _abandon(self, begun: asyncio.Future[Granted]) -> None:
        with contextlib.suppress(AjetError):
            granted = await begun
            await self._episodes.drop(
                granted.record.episode_id,
                "the client disconnected before it received the episode",
                "cancelled",
            )


def _own(granted: Granted, client_id: str) -> Granted:
    """Return `granted` if it belongs to this client.

    :raises ForbiddenError: it belongs to another client.
    """
    if granted.record.client_id != client_id:
        raise ForbiddenError("this claim_id belongs to a claim of another client")
    return granted
