"""Joint episodes: this server's parts of them, and answers to other servers about their outcome."""

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
from ajet_server.security.api_keys import hash_secret
from ajet_server.store.run_store import RunStore


class JointDesk:
    """Handles the two phases in which the parts of joint episodes end.

    It also checks the claims of parts, lists the prepared ones, and reports the outcomes
    of joint episodes whose arbiter this server is.

    :param wall_clock: Unix time in seconds, for records.
    """

    def __init__(
        self, store: RunStore, episodes: EpisodeRegistry, *, wall_clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._episodes = episodes
        self._wall_clock = wall_clock

    async def check_claim(self, request: ClaimRequest, run_id: str | None) -> None:
        """Check that a part may be claimed on this server.

        :raises RequestError: this server already has another part of the joint episode.
        :raises StateError: the client names this server as the arbiter, but with another run.
        """
        joint = request.joint
        if joint is None or run_id is None:
            # Without a run, the claim fails for that reason.
            return
        decides = joint.role == joint.arbiter
        if decides and joint.arbiter_run != run_id:
            raise StateError(
                f"this server's run is {run_id}, not {joint.arbiter_run}: its run directory "
                "has changed since the client connected; create a new Swarm"
            )
        if not decides and joint.arbiter_run == run_id:
            raise RequestError(
                f"roles {joint.role!r} and {joint.arbiter!r} point to the same server (run "
                f"{run_id}); a joint episode needs a different server for each role",
                param="joint",
            )
        other = (await self._store.joint_parts([joint.joint_id])).get(joint.joint_id)
        # An identical claim is a retry after a lost response.
        if other is not None and other.claim_hash != hash_secret(request.claim_id or ""):
            raise RequestError(
                "another claim already opened this joint episode's part on this server; use a new "
                "joint_id",
                param="joint",
            )

    async def check_end(self, episode_id: str) -> None:
        """Check that an episode may be ended directly.

        :raises StateError: the arbiter of its joint episode decides on its end.
        """
        record, _ = await self._episodes.get(episode_id)
        if record.joint is not None and not record.joint.decides:
            raise StateError(
                f"episode {episode_id} is part of a joint episode and cannot be ended directly. "
                f"Use Swarm.end_episode, or: prepare episode {episode_id}, end the part of the "
                f"arbiter {record.joint.arbiter!r}, then commit episode {episode_id}"
            )

    async def prepare(self, episode_id: str, request: EndRequest) -> EpisodeRecord:
        """Prepare a part: store the outcome that it gets if its joint episode is ended.

        The outcome is durable when this returns.

        :return: the stored record: the first outcome stands, and the part may be over already.
        :raises StateError: the episode is the arbiter's part, or not joint.
        """
        record, _ = await self._episodes.get(episode_id)
        if record.joint is None or record.joint.decides:
            what = "not part of a joint episode" if record.joint is None else "the arbiter's part"
            raise StateError(
                f"episode {episode_id} cannot be prepared because it is {what}: end it instead"
            )

        async def write(record: EpisodeRecord) -> EpisodeRecord:
            if not request.allow_no_calls and (why := self._episodes.why_call_failed(record)):
                return await self._store.finish_episode(
                    replace(
                        record,
                        state="aborted",
                        reason=why,
                        cause="call_failed",
                        finished_at=self._wall_clock(),
                    )
                )
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

        # If the client was silent, this gives the episode its slot in the batch back.
        self._episodes.renew(episode_id)
        stored, done = await self._episodes.shut(episode_id, write)
        if done and stored.state == "aborted":
            self._episodes.over(stored)
        elif done:
            self._episodes.prepared.add(stored)
            self._episodes.emit(stored, "prepared")
        return stored

    async def commit(self, episode_id: str) -> EpisodeRecord:
        """End a prepared part, because the arbiter has ended its own.

        :raises StateError: the part is not prepared.
        :raises EpisodeClosedError: the part was aborted.
        """
        record, _ = await self._episodes.get(episode_id)
        if record.state == "prepared":
            record = await self._settle(replace(record, state="ended"))
        if record.state == "open":
            raise StateError(f"episode {episode_id} cannot be committed because it is not prepared")
        if record.state == "aborted":
            raise EpisodeClosedError(f"episode {episode_id} was aborted: {record.reason}")
        return record

    async def give_up(self, record: EpisodeRecord, request: AbortRequest) -> EpisodeRecord:
        """Abort a prepared part at the request of its client.

        :raises StateError: the request does not state that the arbiter has aborted its part.
        """
        if not request.arbiter_aborted:
            raise StateError(
                f"episode {record.episode_id} is prepared, so the arbiter decides its outcome. "
                "Abort the arbiter's part on its server first, then repeat this request with "
                "arbiter_aborted set (Swarm.abort_episode does both)"
            )
        return await self.drop(record, request.reason, request.cause, final=request.final)

    async def drop(
        self, record: EpisodeRecord, reason: str, cause: AbortCause, *, final: bool = False
    ) -> EpisodeRecord:
        """Abort a prepared part, because the arbiter has aborted its own."""
        gone = replace(
            record, state="aborted", reward=None, reason=reason, cause=cause, final=final
        )
        return await self._settle(gone)

    def prepared(self, client_id: str) -> PreparedParts:
        """Return the prepared parts of a client."""
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
        """Return the outcomes of joint episodes whose arbiter this server is.

        A joint episode unknown to this server will never be ended: the arbiter's part is claimed
        and durable before all others.
        """
        parts = await self._store.joint_parts(joint_ids)
        return JointOutcomes(
            run_id=run_id,
            outcomes={joint_id: _outcome(parts.get(joint_id)) for joint_id in joint_ids},
        )

    async def _settle(self, outcome: EpisodeRecord) -> EpisodeRecord:
        stored = await self._store.finish_episode(replace(outcome, finished_at=self._wall_clock()))
        # Of two concurrent calls, only the first finds the part; both return the stored record.
        if self._episodes.prepared.remove(stored.episode_id):
            self._episodes.over(stored)
        return stored


def _outcome(record: EpisodeRecord | None) -> JointOutcome:
    if record is None or record.joint is None or not record.joint.decides:
        return "unknown"
    return "open" if record.state == "prepared" else record.state
