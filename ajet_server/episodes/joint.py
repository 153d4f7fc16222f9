"""Joint episodes: what becomes of their parts on this server, and what others ask about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ajet_core.errors import EpisodeClosedError, RequestError, StateError
from ajet_core.interfaces import EpisodeRecord
from ajet_core.protocol import (
    AbortCause,
    AbortRequest,
    ClaimRequest,
    EndRequest,
    JointOutcome,
    JointOutcomes,
    PreparedPart,
    PreparedParts,
)
from ajet_server.episodes.registry import EpisodeRegistry
from ajet_server.security.auth import hash_secret
from ajet_server.store.run_store import RunStore


class JointDesk:
    """Takes the parts of joint episodes through the two phases of their end.

    It also checks their claims, and says which are prepared and how those ended that this server
    decides.

    :param wall_clock: unix seconds; for records.
    """

    def __init__(
        self, store: RunStore, episodes: EpisodeRegistry, *, wall_clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._episodes = episodes
        self._wall_clock = wall_clock

    async def check_claim(self, request: ClaimRequest, run_id: str | None) -> None:
        """Whether a part may be claimed here.

        :raises RequestError: this server has another part of the joint episode.
        :raises StateError: this server is not the arbiter that the client takes it for.
        """
        joint = request.joint
        if joint is None or run_id is None:
            # Without a run the claim is refused for that.
            return
        decides = joint.role == joint.arbiter
        if decides and joint.arbiter_run != run_id:
            raise StateError(
                f"the run of this server is {run_id}, not {joint.arbiter_run}: its run directory is another one "
                "than when the client connected; make a new Swarm"
            )
        if not decides and joint.arbiter_run == run_id:
            raise RequestError(
                f"{joint.role!r} and {joint.arbiter!r} are the same server: a joint episode has one part on each",
                param="joint",
            )
        other = (await self._store.joint_parts([joint.joint_id])).get(joint.joint_id)
        # The same claim again is one whose answer was lost.
        if other is not None and other.claim_hash != hash_secret(request.claim_id or ""):
            raise RequestError(
                "this server has a part of the joint episode already, by another claim",
                param="joint",
            )

    async def check_end(self, episode_id: str) -> None:
        """Whether an episode may be ended by itself.

        :raises StateError: it is for the arbiter of its joint episode to say.
        """
        record, _ = await self._episodes.get(episode_id)
        if record.joint is not None and not record.joint.decides:
            raise StateError(
                f"episode {episode_id} is a part of a joint one whose arbiter is {record.joint.arbiter!r}: prepare "
                "it, end it there, then commit it (Swarm.end_episode does all three)"
            )

    async def prepare(self, episode_id: str, request: EndRequest) -> EpisodeRecord:
        """Close a part with the outcome that it has if its joint episode is ended.

        It is durable when this returns.

        :return: as it is stored: the first outcome stands, and it may be over already.
        :raises StateError: it is the arbiter's part, or of no joint episode.
        """
        record, _ = await self._episodes.get(episode_id)
        if record.joint is None or record.joint.decides:
            what = "no part of a joint one" if record.joint is None else "its arbiter's part"
            raise StateError(f"episode {episode_id} cannot be prepared, it is {what}: end it")

        async def write(record: EpisodeRecord) -> EpisodeRecord:
            outcome = replace(
                record,
                state="prepared",
                reward=request.reward,
                components=dict(request.components),
                call_rewards=dict(request.call_rewards),
                agent_rewards=dict(request.agent_rewards),
                metadata=dict(request.metadata),
                mixed=await self._episodes.is_mixed(record),
            )
            return await self._store.prepare_episode(outcome)

        # A client that was silent is not any more: it gets its place in the batch back.
        self._episodes.renew(episode_id)
        stored, done = await self._episodes.shut(episode_id, write)
        if done:
            self._episodes.prepared.add(stored)
            self._episodes.emit(stored, "prepared")
        return stored

    async def commit(self, episode_id: str) -> EpisodeRecord:
        """The arbiter has ended its part: this one has ended too.

        :raises StateError: it was not prepared.
        :raises EpisodeClosedError: it was aborted.
        """
        record, _ = await self._episodes.get(episode_id)
        if record.state == "prepared":
            record = await self._settle(replace(record, state="ended"))
        if record.state == "open":
            raise StateError(f"episode {episode_id} is not prepared, so that nothing can commit it")
        if record.state == "aborted":
            raise EpisodeClosedError(f"episode {episode_id} was aborted: {record.reason}")
        return record

    async def give_up(self, record: EpisodeRecord, request: AbortRequest) -> EpisodeRecord:
        """A client wants a prepared part aborted.

        :raises StateError: it does not say that the arbiter has done so.
        """
        if not request.arbiter_aborted:
            raise StateError(
                f"episode {record.episode_id} is prepared: what becomes of it is its arbiter's to "
                "say; abort it there, then here with arbiter_aborted"
            )
        return await self.drop(record, request.reason, request.cause, final=request.final)

    async def drop(
        self, record: EpisodeRecord, reason: str, cause: AbortCause, *, final: bool = False
    ) -> EpisodeRecord:
        """The arbiter has aborted its part: this one is aborted too."""
        gone = replace(
            record, state="aborted", reward=None, reason=reason, cause=cause, final=final
        )
        return await self._settle(gone)

    def prepared(self, client_id: str) -> PreparedParts:
        """The prepared parts of a client."""
        parts = self._episodes.prepared
        return PreparedParts(
            prepared=[
                PreparedPart(
                    episode_id=part.record.episode_id,
                    joint_id=part.joint.joint_id,
                    role=part.joint.role,
                    arbiter=part.joint.arbiter,
                    arbiter_run=part.joint.arbiter_run,
                    seconds=parts.waited(part),
                )
                for part in parts
                if part.record.client_id == client_id
            ]
        )

    async def outcomes(self, joint_ids: Sequence[str], run_id: str | None) -> JointOutcomes:
        """How joint episodes ended that this server decides.

        What it does not know will never be ended: its part is claimed before all others, and durable then.
        """
        parts = await self._store.joint_parts(joint_ids)
        return JointOutcomes(
            run_id=run_id,
            outcomes={joint_id: _outcome(parts.get(joint_id)) for joint_id in joint_ids},
        )

    async def _settle(self, outcome: EpisodeRecord) -> EpisodeRecord:
        stored = await self._store.finish_episode(replace(outcome, finished_at=self._wall_clock()))
        # Of two that say so at once one is the first; the store's word is the same for both.
        if self._episodes.prepared.remove(stored.episode_id):
            self._episodes.over(stored)
        return stored


def _outcome(record: EpisodeRecord | None) -> JointOutcome:
    if record is None or record.joint is None or not record.joint.decides:
        return "unknown"
    return "open" if record.state == "prepared" else record.state
