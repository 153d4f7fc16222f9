"""The registry of open episodes: leases keep them open, and each is closed once."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
    Set,
)
from dataclasses import replace
from typing import Any, TypeVar

from ajet_core.errors import (
    AuthError,
    EpisodeClosedError,
    EpisodeNotFoundError,
)
from ajet_core.interfaces import EpisodeRecord
from ajet_core.protocol import AbortCause, AbortRequest, EndRequest
from ajet_server.admission.admission import Admission
from ajet_server.admission.batching import BatchBuilder
from ajet_server.episodes.evaluations import Evaluations, is_mixed
from ajet_server.episodes.open_episodes import OpenEpisode, OpenEpisodes
from ajet_server.episodes.prepared import PreparedEpisodes
from ajet_server.gateway.formats.exchange import Session
from ajet_server.gateway.rendering.conversation import ConversationIndex
from ajet_server.observe.events import EventLog
from ajet_server.security.api_keys import episode_of, hash_secret
from ajet_server.security.tenants import Tenants
from ajet_server.state import StateBoard
from ajet_server.store.run_store import RunStore

T = TypeVar("T")

EpisodeListener = Callable[[EpisodeRecord], None]

_SHOWN_ID = 64
# How often tasks without open episodes come closer to losing their slots.
_WAIT_SECONDS = 1.0


class EpisodeRegistry:
    """All open episodes of the server. `Admission` decides which episodes start.

    :param open_episodes: the episodes that are open.
    :param admission: receives the outcome of each episode.
    :param evaluations: counts evaluation episodes.
    :param answers_calls: whether this process answers calls, and thus needs the conversations of
        the episodes that it restores.
    :param clock: seconds, monotonic, for leases.
    :param wall_clock: Unix time in seconds, for records.
    :param listeners: called with every episode whose outcome is durable.
    :ivar open: as `open_episodes`.
    :ivar prepared: parts of joint episodes that wait for their arbiter.
    """

    def __init__(
        self,
        store: RunStore,
        board: StateBoard,
        events: EventLog,
        tenants: Tenants,
        *,
        open_episodes: OpenEpisodes,
        admission: Admission,
        evaluations: Evaluations,
        answers_calls: bool = True,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        listeners: Iterable[EpisodeListener] = (),
    ) -> None:
        self._store = store
        self._board = board
        self._events = events
        self._tenants = tenants
        self._clock = clock
        self._wall_clock = wall_clock
        self._admission = admission
        self._evaluations = evaluations
        self._answers_calls = answers_calls
        self._listeners = list(listeners)
        self._waited_at = clock()
        self.open = open_episodes
        self.prepared = PreparedEpisodes(clock)

    async def restore(self) -> None:
        """Restore the store's open episodes: they continue with the same keys after a restart."""
        for record in self._store.loose("open"):
            calls = (await self._store.calls([record.episode_id]))[record.episode_id]
            # The number of calls would be wrong: a call whose write failed leaves a gap.
            following = max((call.index for call in calls), default=-1) + 1
            index = ConversationIndex.restore(calls if self._answers_calls else ())
            session = Session(record.episode_id, index, following)
            for call in calls:
                session.note(call)
            self._add(self.open.opened(record, session))
            self._admission.restored(record)
        for record in self._store.loose("prepared"):
            self.prepared.add(record)
            self._evaluations.opened(record)
            self._admission.restored(record)

    def begin(self, builder: BatchBuilder) -> None:
        """Fill batches with `builder` from now on, starting with the episodes in no batch yet."""
        loose = [*self._store.loose("ended"), *self._store.loose("aborted")]
        records = {record.episode_id: record for record in loose}
        # An outcome may be durable but not reported yet. Its episode is still open here, and will
        # be reported to this builder.
        records |= {episode.record.episode_id: episode.record for episode in self.open}
        records |= {part.record.episode_id: part.record for part in self.prepared}
        builder.restore(record for record in records.values() if record.kind == "train")
        for episode in self.open:
            if episode.silent and episode.record.kind == "train":
                builder.silent(episode.record)
        for part in self.prepared:
            if part.silent and part.record.kind == "train":
                builder.silent(part.record)
        self._admission.begin(builder)

    @contextlib.contextmanager
    def listening(self, listener: EpisodeListener) -> Iterator[None]:
        """Call `listener` with each durable outcome while the context is open."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    @property
    def clients(self) -> Set[str]:
        """Ids of the clients that have open episodes or wait for some."""
        return self._tenants.active

    def wanted_tags(self) -> set[str]:
        """Return the tags of train episodes that clients roll out or wait to roll out."""
        rolled_out = {e.record.tag for e in self.open if e.record.kind == "train" and not e.silent}
        return rolled_out | self._admission.waiting_tags

    async def begin_episode(self, record: EpisodeRecord) -> OpenEpisode:
        """Open an episode that was admitted; it is durable when this returns.

        :raises StoreError: the episode could not be stored, and did not start.
        """
        session = Session(record.episode_id, ConversationIndex(), 0)
        episode = self.open.opened(record, session)
        try:
            await self._store.add_episode(record)
        except BaseException:
            # Without a durable record the episode did not start: free its slot.
            self._admission.withdraw(record)
            raise
        self._add(episode)
        self.emit(record, "claimed")
        return episode

    def adopt(self, record: EpisodeRecord) -> None:
        """Open an episode that the store has although `begin_episode` failed to write it."""
        self._admission.restored(record)
        self._add(self.open.opened(record, Session(record.episode_id, ConversationIndex(), 0)))
        self.emit(record, "claimed")

    def renew(self, episode_id: str) -> OpenEpisode | None:
        """Renew the lease of an open episode and return it; None if it is not open."""
        episode = self.open.get(episode_id)
        if episode is not None:
            self._saw(episode)
        return episode

    async def authenticate(self, key: str) -> OpenEpisode:
        """Return the open episode that `key` belongs to.

        :raises AuthError: the key is unknown, or the token that claimed its episode is no longer
            valid.
        :raises EpisodeClosedError: the episode is over.
        """
        if not (episode_id := episode_of(key)):
            raise unknown_key()
        episode = self.open.get(episode_id)
        record = episode.record if episode else await self._store.get_episode(episode_id)
        if record is None or not hmac.compare_digest(record.key_hash, hash_secret(key)):
            raise unknown_key()
        if episode is None:
            raise EpisodeClosedError(closed_message(record))
        self._tenants.require_live(record.client_id)
        if episode.closing.locked():
            raise EpisodeClosedError(f"episode {episode_id} is being closed")
        if episode.calls_over:
            raise EpisodeClosedError(
                f"episode {episode_id} makes no more calls: its reward is being determined"
            )
        self._saw(episode)
        return episode

    async def heartbeats(self, episode_ids: Sequence[str], client_id: str) -> dict[str, str]:
        """Renew the leases of a client's episodes.

        :return: by id, why an episode is not open.
        """
        closed: dict[str, str] = {}
        for episode_id in dict.fromkeys(episode_ids):
            episode = self.open.get(episode_id)
            if episode is not None and episode.record.client_id == client_id:
                self._saw(episode)
                continue
            record = await self._store.get_episode(episode_id)
            known = record is not None and record.client_id == client_id
            closed[episode_id] = (
                closed_message(record)
                if known and record is not None
                else f"no episode {episode_id!r}"
            )
        return closed

    async def get(self, episode_id: str) -> tuple[EpisodeRecord, OpenEpisode | None]:
        """Return an episode of any state, with its live part if it is open.

        :raises EpisodeNotFoundError: the episode does not exist.
        """
        episode = self.open.get(episode_id)
        record = episode.record if episode else await self._store.get_episode(episode_id)
        if record is None:
            raise EpisodeNotFoundError(not_found_message(episode_id))
        return record, episode

    async def heartbeat(self, episode_id: str) -> OpenEpisode:
        """Renew the lease of an episode.

        :raises EpisodeClosedError: the episode is over.
        """
        record, episode = await self.get(episode_id)
        if episode is None:
            raise EpisodeClosedError(closed_message(record))
        self._saw(episode)
        return episode

    async def end_calls(self, episode_id: str) -> OpenEpisode:
        """Refuse the key of an open episode from now on, and cancel its running calls.

        :raises EpisodeClosedError: the episode is over.
        """
        episode = await self.heartbeat(episode_id)
        async with episode.closing:
            if episode_id not in self.open:
                raise EpisodeClosedError(closed_message((await self.get(episode_id))[0]))
            episode.calls_over = True
            await episode.cancel_calls()
        return episode

    async def end(self, episode_id: str, request: EndRequest) -> EpisodeRecord:
        """End an episode with its reward; the outcome is durable when this returns.

        An episode without a call to train, or whose last call the server failed to answer, is
        aborted instead, unless that is allowed.

        :return: the stored record.
        """
        return await self._close(
            episode_id,
            needs_calls=not request.allow_no_calls,
            state="ended",
            reward=request.reward,
            components=dict(request.components),
            call_rewards=dict(request.call_rewards),
            agent_rewards=dict(request.agent_rewards),
            metadata=dict(request.metadata),
        )

    async def abort(self, episode_id: str, request: AbortRequest) -> EpisodeRecord:
        """Abort an episode at the request of its client; it is not trained.

        A client may also give up an episode for good after it was aborted otherwise, for example by
        its lease.

        :return: the stored record; a prepared part stays prepared.
        """
        record = await self._close(
            episode_id,
            state="aborted",
            reason=request.reason,
            cause=request.cause,
            final=request.final,
        )
        if request.final and record.state == "aborted" and not record.final:
            record = await self._store.give_up(episode_id)
            self._admission.given_up(record)
        return record

    async def drop(self, episode_id: str, reason: str, cause: AbortCause) -> EpisodeRecord:
        """Abort an episode on the server's initiative."""
        return await self._close(episode_id, state="aborted", reason=reason, cause=cause)

    async def abort_all(self, reason: str, cause: AbortCause, client_id: str | None = None) -> None:
        """Abort every open episode, or every one of a client."""
        whose = [
            episode.record.episode_id
            for episode in self.open
            if client_id is None or episode.record.client_id == client_id
        ]
        await self._drop_each(dict.fromkeys(whose, reason), cause)

    async def abort_training(self, reason: str, cause: AbortCause) -> None:
        """Abort every open train episode."""
        whose = [e.record.episode_id for e in self.open if e.record.kind == "train"]
        await self._drop_each(dict.fromkeys(whose, reason), cause)

    async def drop_late(self, reason: str, *, before: int | None = None) -> None:
        """Abort open train episodes.

        :param before: abort only those claimed with weights of an earlier version.
        """
        late = [
            episode.record.episode_id
            for episode in self.open
            if episode.record.kind == "train"
            and (before is None or episode.record.claim_version < before)
        ]
        await self._drop_each(dict.fromkeys(late, reason), "late")

    async def expire_leases(self) -> float:
        """Abort episodes whose lease expired, and those that were open for too long.

        :return: seconds until the next check.
        """
        expired: dict[str, str] = {}
        overlong: dict[str, str] = {}
        for episode in self.open.expired():
            record = episode.record
            if episode.ends_at <= self._clock():
                overlong[record.episode_id] = (
                    f"the episode was open for {self.open.max_seconds:g} s, the maximum of "
                    "this server (setting server.max_episode_seconds)"
                )
            else:
                expired[record.episode_id] = (
                    f"the lease expired: no call or heartbeat for {record.lease_seconds:g} s"
                )
        await self._drop_each(expired, "lease_expired")
        await self._drop_each(overlong, "timeout")
        silent = [episode.record for episode in self.open.newly_silent()]
        silent += [part.record for part in self.prepared.newly_silent()]
        self._admission.silent(silent)
        if (now := self._clock()) >= self._waited_at + _WAIT_SECONDS:
            self._waited_at = now
            self._admission.wait_less()
        return self.open.seconds_to_look()

    @contextlib.contextmanager
    def running_call(
        self, episode: OpenEpisode, work: Coroutine[Any, Any, T]
    ) -> Iterator[asyncio.Task[T]]:
        """Run `work` in a task as one of the episode's calls while the context is open.

        :raises EpisodeClosedError: the episode is over or being closed.
        """
        with self.open.running_call(episode, work) as task:
            try:
                yield task
            finally:
                self._saw(episode)

    @contextlib.asynccontextmanager
    async def counted(self, episode: OpenEpisode) -> AsyncIterator[None]:
        """Count a call of the episode for the limits while the context is open.

        :raises BusyError: the episode or its tenant has reached its limit of calls.
        """
        with self._tenants.call(episode.record, episode.session.next_index):
            yield

    async def judged(self, episode: OpenEpisode) -> None:
        """Do nothing: `end` reads `Session.failure` here."""

    def called_elsewhere(self, episode_id: str, running: int) -> None:
        """Record a sign of life of an episode whose calls another process answers.

        :param running: the number of its calls being answered.
        """
        episode = self.open.get(episode_id)
        if episode is not None and episode.elsewhere is not None:
            episode.elsewhere.running = running
            self._saw(episode)
            self.open.called(episode)

    def _add(self, episode: OpenEpisode) -> None:
        self.open.add(episode)
        self._evaluations.opened(episode.record)

    def _saw(self, episode: OpenEpisode) -> None:
        """Record a sign of life of an episode's client."""
        if self.open.saw(episode):
            self._admission.heard(episode.record)

    async def _drop_each(self, reasons: dict[str, str], cause: AbortCause) -> None:
        """Abort episodes by id, each with its reason; the store commits them together.

        :raises StoreError: one or more could not be aborted.
        """
        aborting = [self.drop(episode_id, reason, cause) for episode_id, reason in reasons.items()]
        for outcome in await asyncio.gather(*aborting, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _close(
        self, episode_id: str, *, needs_calls: bool = False, **outcome: object
    ) -> EpisodeRecord:
        async def write(record: EpisodeRecord) -> EpisodeRecord:
            if needs_calls and (why := self.why_call_failed(record)):
                return await finish(record, aborted(why, "call_failed"))
            if needs_calls and (why := await self._why_no_calls(record)):
                return await finish(record, aborted(why, "no_calls"))
            return await finish(record, outcome)

        def aborted(reason: str, cause: AbortCause) -> dict[str, object]:
            return {"state": "aborted", "reason": reason, "cause": cause}

        async def finish(record: EpisodeRecord, outcome: dict[str, object]) -> EpisodeRecord:
            mixed = await self.is_mixed(record)
            changes = {**outcome, "finished_at": self._wall_clock(), "mixed": mixed}
            return await self._store.finish_episode(replace(record, **changes))  # type: ignore[arg-type]

        closed, done = await self.shut(episode_id, write)
        if done:
            self.over(closed)
        return closed

    def why_call_failed(self, record: EpisodeRecord) -> str:
        """Return why an episode whose last call failed must not get a reward; "" if it may.

        A program may end as if nothing had happened, so its status says nothing.
        """
        episode = self.open[record.episode_id]
        if episode.rules.allow_no_calls or not episode.session.failure:
            return ""
        return (
            f"the server failed to answer its last model call ({episode.session.failure}), so what "
            "its program did says nothing about the model. To keep such rewards, set "
            "allow_no_calls in the end request or rollout.allow_no_calls"
        )

    async def _why_no_calls(self, record: EpisodeRecord) -> str:
        """Return why an episode must not get a reward; "" if it may have one.

        A part of a joint episode may: its model may not have been needed.
        """
        episode = self.open[record.episode_id]
        if episode.rules.allow_no_calls or record.joint is not None:
            return ""
        builder = self._admission.builder
        untrained = record.untrained_agents
        if builder is not None:
            untrained |= builder.slots.untrained_agents
        answered = +episode.session.answered
        if not answered:
            # A write whose answer was lost is not counted.
            calls = (await self._store.calls([record.episode_id]))[record.episode_id]
            answered = Counter(call.agent for call in calls if call.finish_reason != "abort")
        if answered.keys() - untrained:
            return ""
        only = ", ".join(map(repr, sorted(answered)))
        why = (
            f"only agents that are not trained made model calls ({only})"
            if answered
            else "no model call of it was answered"
        )
        return (
            f"{why}, so its reward would count only in the baseline. Check that the program uses "
            "the base_url and api_key of its episode, and see its errors. To keep such rewards, "
            "set allow_no_calls in the end request or rollout.allow_no_calls"
        )

    async def shut(
        self, episode_id: str, write: Callable[[EpisodeRecord], Awaitable[EpisodeRecord]]
    ) -> tuple[EpisodeRecord, bool]:
        """Remove an episode from the open ones after `write` has stored its outcome.

        :return: the stored record, and whether this call closed the episode.
        """
        record, episode = await self.get(episode_id)
        if episode is None:
            return record, False
        async with episode.closing:
            if episode_id not in self.open:
                return (await self.get(episode_id))[0], False
            await episode.cancel_calls()
            stored = await write(record)
            self.open.remove(episode_id)
        return stored, True

    def over(self, record: EpisodeRecord) -> None:
        """Report an episode's durable outcome to all components and listeners."""
        self._admission.over(record)
        self.emit(record, record.state)
        self._evaluations.finished(record)
        for listener in self._listeners:
            listener(record)

    async def is_mixed(self, record: EpisodeRecord) -> bool:
        """Return whether weights changed during an evaluation episode."""
        if record.kind == "train" or record.claim_version == self._board.policy_version:
            return False
        calls = await self._store.calls([record.episode_id])
        return is_mixed(record, calls[record.episode_id])

    def emit(self, record: EpisodeRecord, what: str) -> None:
        """Emit an event about an episode."""
        self._events.emit(
            "episode",
            {
                "what": what,
                "episode_id": record.episode_id,
                "task_id": record.task_id,
                "kind": record.kind,
                "tag": record.tag,
                "reward": record.reward,
                "reason": record.reason,
                "cause": record.cause or None,
                "policy_version": record.claim_version,
            },
            record.client_id,
        )


def unknown_key() -> AuthError:
    """Return the error for a key that belongs to no episode."""
    return AuthError("unknown API key: use the api_key that the claim of the episode returned")


def not_found_message(episode_id: str) -> str:
    """Return the message for an episode that is missing, or hidden from the caller."""
    return f"no episode {episode_id[:_SHOWN_ID]!r} on this server"


def closed_message(record: EpisodeRecord) -> str:
    """Return why an episode that is not open is closed."""
    if record.state == "aborted":
        return f"episode {record.episode_id} was aborted: {record.reason}"
    if record.state == "prepared":
        return f"episode {record.episode_id} is prepared and accepts no more calls"
    return f"episode {record.episode_id} has ended"
