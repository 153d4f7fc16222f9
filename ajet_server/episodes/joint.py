"""What clients and other servers ask about joint episodes."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.errors import RequestError, StateError
from ajet_core.interfaces import EpisodeRecord, SampleStore
from ajet_core.protocol import (
    ClaimRequest,
    JointOutcome,
    JointOutcomes,
    PreparedPart,
    PreparedParts,
)
from ajet_server.episodes.registry import EpisodeRegistry
from ajet_server.security.auth import hash_secret


class JointDesk:
    """Checks claims of parts, and says which are prepared and how those ended that this server decides."""

    def __init__(self, store: SampleStore, episodes: EpisodeRegistry) -> None:
        self._store = store
        self._episodes = episodes

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

    def prepared(self, client_id: str) -> PreparedParts:
        """The prepared parts of a client."""
        parts = self._episodes.joint
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


def _outcome(record: EpisodeRecord | None) -> JointOutcome:
    if record is None or record.joint is None or not record.joint.decides:
        return "unknown"
    return "open" if record.state == "prepared" else record.state
