"""Joint episodes: parts on several servers, ended together or aborted together, written once for both clients.

Two-phase commit. The server whose role comes first in the alphabet is the arbiter: its part is claimed first, and its
ordinary end is the moment at which the joint episode has ended. Before it the other parts are prepared, so that nothing
but its outcome is needed to end them; after it they are committed, now or whenever they can be reached.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentjet.client._episode import Episode, EpisodeOutcome
from agentjet.client._flows import LONG_POLL, Flow, Flows, Kind
from ajet_core.errors import (
    AjetError,
    ConfigError,
    EpisodeClosedError,
    EpisodeError,
    RequestError,
    StateError,
)
from ajet_core.protocol import (
    AgentCause,
    EpisodeStatus,
    GroupCounts,
    JointPart,
    PreparedPart,
    RunConfig,
)

# How often a runner asks whether parts of earlier programs, or of its own, are in doubt.
RESOLVE_SECONDS = 5.0
_IDS_AT_ONCE = 1000
# A claim that waits for one server keeps what it has of the others.
_POLLS_PER_LEASE = 3

_log = logging.getLogger("ajet.client")


@dataclass(kw_only=True)
class SwarmEpisode:
    """A joint episode: one part on each server, by role, as ``episode["planner"].base_url``.

    :ivar parts: in the order of their claims, the arbiter's first.
    """

    task_id: str
    joint_id: str = field(repr=False)
    parts: dict[str, Episode] = field(default_factory=dict)

    def __getitem__(self, role: str) -> Episode:
        return self.parts[role]

    @property
    def episode_id(self) -> str:
        """The id of the arbiter's part."""
        return next(iter(self.parts.values())).episode_id

    def redact(self, text: str) -> str:
        """`text` without the keys of all parts."""
        for part in self.parts.values():
            text = part.redact(text)
        return text


@dataclass(frozen=True, kw_only=True)
class SwarmOutcome:
    """What an agent may return of a joint episode: an outcome for each role."""

    parts: Mapping[str, EpisodeOutcome]

    @property
    def reward(self) -> float:
        """The mean over the roles."""
        return sum(part.reward for part in self.parts.values()) / len(self.parts)

    @classmethod
    def of(cls, value: object, roles: Sequence[str]) -> SwarmOutcome:
        """The outcome that an agent's return value means; one number is the reward of every role.

        :raises TypeError: it is no number, outcome or mapping of these.
        :raises RequestError: a mapping has other roles.
        """
        if isinstance(value, SwarmOutcome):
            value = value.parts
        if not isinstance(value, Mapping):
            return cls(parts=dict.fromkeys(roles, EpisodeOutcome.of(value)))
        if set(value) != set(roles):
            raise RequestError(
                f"rewards for {', '.join(map(repr, value))}: the roles of this swarm are "
                f"{', '.join(map(repr, roles))}, and each needs one"
            )
        return cls(parts={role: EpisodeOutcome.of(value[role]) for role in roles})


Rewards = float | EpisodeOutcome | Mapping[str, float | EpisodeOutcome] | SwarmOutcome
"""What an agent says of a joint episode: a reward or an outcome for each role, or one for all."""


@dataclass(frozen=True, slots=True)
class ClaimTerms:
    """As the parameters of `SwarmClient.begin_episode`."""

    group: str | None
    kind: Kind
    tag: str
    lease_seconds: float
    heartbeat_seconds: float | None
    timeout: float | None


class JointFlows:
    """The flows of one swarm.

    :param members: by role.
    :ivar roles: in the order in which parts are claimed: the same for all clients, so that none waits for another in a
        circle.
    """

    def __init__(self, members: Mapping[str, Flows]) -> None:
        if not members:
            raise ConfigError("a swarm needs at least one server", param="servers")
        self.roles = tuple(sorted(members))
        self.arbiter = self.roles[0]
        self._members = members
        self._clock = members[self.arbiter].clock
        self._runs: dict[str, str] = {}
        # Being claimed or ended: a server that is away keeps the others waiting, with the parts that they have.
        self._between: dict[str, SwarmEpisode] = {}
        self._resolved_at: float | None = None

    # --- The servers ------------------------------------------------------------------------------

    def check_configs(self, configs: Mapping[str, RunConfig]) -> None:
        """Whether runs of these configurations can be joined.

        :raises ConfigError: they cannot, or some are missing.
        """
        if set(configs) != set(self.roles):
            raise ConfigError(
                f"configurations for {', '.join(sorted(configs))}: the roles of this swarm are "
                f"{', '.join(self.roles)}"
            )
        sizes = {role: configs[role].batch.episodes_per_task for role in self.roles}
        if len(set(sizes.values())) > 1:
            told = ", ".join(f"{size} at {role!r}" for role, size in sizes.items())
            raise ConfigError(
                f"batch.episodes_per_task differs ({told}): a joint episode belongs to the group of its task on "
                "every server, so groups must have one size",
                param="batch.episodes_per_task",
            )

    def join(self, *, again: bool = False) -> Flow[None]:
        """Compare the servers' runs; nothing if that was done.

        :param again: also if that was done: a run may have been configured anew.
        :raises ConfigError: they cannot be joined.
        :raises StateError: one has no run.
        """
        if self._runs and not again:
            return
        runs: dict[str, str] = {}
        configs: dict[str, RunConfig] = {}
        for role in self.roles:
            member = self._members[role]
            if member.version is None:
                yield from member.connect()
            status = yield from member.run_status()
            runs[role], configs[role] = status.run_id, status.config
        for role, run in runs.items():
            first = next(other for other in self.roles if runs[other] == run)
            if first != role:
                raise ConfigError(
                    f"{first!r} and {role!r} are the same server (run {run}): a joint episode has one part on each"
                )
        self.check_configs(configs)
        self._runs = runs

    def leave(self) -> None:
        """Forget the servers' runs: they may be others by now."""
        self._runs = {}

    # --- One joint episode ------------------------------------------------------------------------

    def new(self, task_id: str) -> SwarmEpisode:
        """A joint episode without any part."""
        return SwarmEpisode(task_id=task_id, joint_id=secrets.token_urlsafe(24))

    def claim(self, episode: SwarmEpisode, terms: ClaimTerms) -> Flow[None]:
        """Claim all parts; if it fails those that were claimed are in the episode, to be aborted."""
        yield from self.join()
        deadline = None if terms.timeout is None else self._clock() + terms.timeout
        self._between[episode.joint_id] = episode
        try:
            for role in self.roles:
                left = None if deadline is None else max(0.0, deadline - self._clock())
                joint = JointPart(
                    joint_id=episode.joint_id,
                    role=role,
                    arbiter=self.arbiter,
                    arbiter_run=self._runs[self.arbiter],
                )
                grant = yield from self._members[role].claim(
                    episode.task_id,
                    group=terms.group,
                    kind=terms.kind,
                    tag=terms.tag,
                    lease_seconds=terms.lease_seconds,
                    heartbeat_seconds=terms.heartbeat_seconds,
                    timeout=left,
                    joint=joint,
                    poll_seconds=min(LONG_POLL, terms.lease_seconds / _POLLS_PER_LEASE),
                    meanwhile=lambda: self._keep(episode),
                )
                episode.parts[role] = Episode.from_grant(grant)
        finally:
            del self._between[episode.joint_id]

    def end(self, episode: SwarmEpisode, outcome: SwarmOutcome) -> Flow[dict[str, EpisodeStatus]]:
        """End all parts. Once the arbiter's has ended, all have: a server that cannot be reached hears of it later.

        :raises EpisodeError: a part was over before; the others are aborted.
        """
        found: dict[str, EpisodeStatus] = {}
        self._between[episode.joint_id] = episode
        try:
            # The arbiter's is the first claimed and the last to say.
            for role in reversed(self.roles):
                found[role] = yield from self._members[role].end(
                    episode[role].episode_id,
                    **vars(outcome.parts[role]),
                    prepare=role != self.arbiter,
                )
        except EpisodeError as error:
            reason = f"a part of the joint episode is over: {error.message}"
            yield from self.abort(episode, reason, cause="cancelled", final=False)
            raise
        finally:
            del self._between[episode.joint_id]
        found |= yield from self._commit(episode)
        return found

    def abort(
        self,
        episode: SwarmEpisode,
        reason: str,
        *,
        cause: AgentCause,
        final: bool,
        retries: int | None = None,
    ) -> Flow[dict[str, EpisodeStatus]]:
        """Give up all parts, unless the arbiter's has ended."""
        if self.arbiter not in episode.parts:
            return {}
        status = yield from self._members[self.arbiter].abort(
            episode[self.arbiter].episode_id, reason, cause=cause, final=final, retries=retries
        )
        if status.state == "ended":
            return {self.arbiter: status} | (yield from self._commit(episode))
        found = {self.arbiter: status}
        for role, part in list(episode.parts.items())[1:]:
            flow = self._members[role].abort(
                part.episode_id,
                reason,
                cause=cause,
                final=final,
                retries=retries,
                arbiter_aborted=True,
            )
            yield from self._tell(role, flow, found)
        return found

    def _commit(self, episode: SwarmEpisode) -> Flow[dict[str, EpisodeStatus]]:
        found: dict[str, EpisodeStatus] = {}
        for role in self.roles[1:]:
            flow = self._members[role].commit(episode[role].episode_id)
            yield from self._tell(role, flow, found)
        return found

    def _tell(
        self, role: str, flow: Flow[EpisodeStatus], found: dict[str, EpisodeStatus]
    ) -> Flow[None]:
        """Tell a server what is decided; whether that works changes nothing."""
        try:
            found[role] = yield from flow
        except AjetError as error:
            _log.warning("%r hears later what was decided: %s", role, error.message)

    # --- Many -------------------------------------------------------------------------------------

    def heartbeats(self, episodes: Sequence[SwarmEpisode]) -> Flow[dict[str, str]]:
        """Renew the leases of all parts, also of joint episodes that are being claimed or ended; now and then `resolve`.

        :return: why joint episodes are over, by the id of the arbiter's part.
        :raises AjetError: a server did not take it; the others have.
        """
        closed: dict[str, str] = {}
        failed: AjetError | None = None
        beating = [*episodes, *list(self._between.values())]
        for role in self.roles:
            ids = {e.parts[role].episode_id: e for e in beating if role in e.parts}
            if not ids:
                continue
            try:
                over = yield from self._members[role].heartbeats(list(ids))
            except AjetError as error:
                failed = error
            else:
                closed |= {ids[found].episode_id: why for found, why in over.items()}
        if self._resolved_at is not None and self._clock() - self._resolved_at > RESOLVE_SECONDS:
            yield from self.resolve()
        if failed is not None:
            raise failed
        return closed

    def _keep(self, episode: SwarmEpisode) -> Flow[None]:
        """Renew the leases of what is claimed.

        :raises EpisodeClosedError: a part is over.
        """
        for role, part in list(episode.parts.items()):
            over = yield from self._members[role].heartbeats([part.episode_id])
            if over:
                raise EpisodeClosedError(
                    f"the part at {role!r} is over while another one waited: {over[part.episode_id]}"
                )

    def group_counts(self, groups: Sequence[str], kind: Kind) -> Flow[dict[str, GroupCounts]]:
        """How many joint episodes of each group there are: the arbiter knows."""
        yield from self.join()
        yield from self.resolve()
        return (yield from self._members[self.arbiter].group_counts(groups, kind))

    # --- What is in doubt -------------------------------------------------------------------------

    def resolve(self) -> Flow[int]:
        """End or abort prepared parts of this token whose client is gone, as their arbiter decided.

        A server that cannot be asked is left for the next time.

        :return: how many parts were resolved.
        """
        self._resolved_at = self._clock()
        resolved = 0
        try:
            yield from self.join()
        except AjetError as error:
            _log.warning("joint episodes in doubt are not looked for: %s", error.message)
            return 0
        judges = {run: self._members[role] for role, run in self._runs.items()}
        for role in self.roles:
            member = self._members[role]
            try:
                parts = (yield from member.prepared()).prepared
                for run in {part.arbiter_run for part in parts} & judges.keys():
                    some = [part for part in parts if part.arbiter_run == run][:_IDS_AT_ONCE]
                    resolved += yield from self._resolve(member, judges[run], run, some)
            except AjetError as error:
                _log.warning("what is in doubt at %r stays so for now: %s", role, error.message)
        return resolved

    def _resolve(
        self, member: Flows, judge: Flows, run: str, parts: Sequence[PreparedPart]
    ) -> Flow[int]:
        answer = yield from judge.joint_outcomes([part.joint_id for part in parts])
        if answer.run_id != run:
            raise StateError(f"{judge.endpoint.url} has another run by now ({answer.run_id})")
        resolved = 0
        for part in parts:
            outcome = answer.outcomes[part.joint_id]
            if outcome == "open":
                # Its client lives, or its lease will end.
                continue
            resolved += 1
            if outcome == "ended":
                yield from member.commit(part.episode_id, retries=0)
            else:
                yield from member.abort(
                    part.episode_id,
                    f"its joint episode was aborted: {part.arbiter!r} says {outcome}",
                    cause="cancelled",
                    final=False,
                    retries=0,
                    arbiter_aborted=True,
                )
        return resolved
