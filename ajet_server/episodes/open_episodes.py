"""Open episodes: their leases, and the heartbeats that their clients have promised."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from ajet_core.errors import CallLimitError, EpisodeClosedError, TokenLimitError
from ajet_core.interfaces import EpisodeRecord
from ajet_core.protocol import CallRules
from ajet_server.episodes.leases import LeaseWatch
from ajet_server.gateway.formats.exchange import Session
from ajet_server.gateway.running_calls import RunningSnapshot

T = TypeVar("T")

BEATS_MISSED = 3.0
# A client that returns after a silence may be silent for this many times as long from then on, up
# to a limit: its machine is slow, and would otherwise lose its slots repeatedly.
_PATIENCE, _MOST_PATIENCE = 2.0, 30.0
# The maximum interval: a new episode may have a shorter lease than the earlier ones.
_LOOK_SECONDS = 0.25


class CallsElsewhere(Protocol):
    """The calls of an episode that another process answers.

    :ivar running: the number of calls being answered, as last reported.
    """

    running: int

    async def close(self) -> None:
        """Cancel the calls, and begin no more; what they sampled is recorded when this returns."""

    async def look(self, seen: Mapping[str, int]) -> RunningSnapshot | None:
        """As `OpenEpisode.look`."""


LimitReached = Literal["call_limit", "token_limit"]


def limit_reached(rules: CallRules, calls: int, tokens: int) -> LimitReached | None:
    """Return the limit that an episode has used up.

    :param calls: that it has made.
    :param tokens: sampled in them.
    """
    if rules.max_calls is not None and calls >= rules.max_calls:
        return "call_limit"
    if rules.max_tokens is not None and tokens >= rules.max_tokens:
        return "token_limit"
    return None


@dataclass(slots=True)
class ReservedCalls:
    """Calls in progress that count for the limits of their episode.

    :param count: those that have no index yet, and so are not counted by the session.
    :ivar most_tokens: that each of them may sample; None if the episode has no limit.
    """

    episode: OpenEpisode
    count: int
    most_tokens: int | None = None

    def taken(self) -> None:
        """Note that one of the calls has taken its index, and so is counted by the session."""
        # A call may be written after its request was cancelled and gave its calls back.
        if self.count:
            self.count -= 1
            self.episode.calls_reserved -= 1

    def give_back(self) -> None:
        """Release the calls that took no index."""
        self.episode.calls_reserved -= self.count
        self.count = 0


@dataclass(slots=True)
class OpenEpisode:
    """An episode that may make calls.

    :ivar calls_running: tasks of calls being answered; they keep the lease alive and are cancelled
        when the episode is closed.
    :ivar seen_at: clock time of the last sign of life, which renews the lease.
    :ivar called_at: clock time of the last model call, or of the claim.
    :ivar ends_at: clock time at which the episode is aborted, whatever its client does.
    :ivar silent: whether its client missed its heartbeats, so that its slot was given away.
    :ivar elsewhere: its calls in another process that has opened it.
    :ivar rules: of its calls, as its record has them.
    :ivar calls_reserved: calls in progress that have no index yet.
    :ivar calls_over: whether it may make no more calls, because its reward is being determined.
    """

    record: EpisodeRecord
    session: Session
    seen_at: float
    called_at: float
    ends_at: float
    silent: bool = False
    calls_running: set[asyncio.Task[Any]] = field(default_factory=set)
    closing: asyncio.Lock = field(default_factory=asyncio.Lock)
    elsewhere: CallsElsewhere | None = None
    rules: CallRules = field(init=False)
    calls_reserved: int = 0
    calls_over: bool = False

    def __post_init__(self) -> None:
        self.rules = CallRules.model_validate(self.record.rules)

    @contextlib.contextmanager
    def reserved(self, count: int) -> Iterator[ReservedCalls]:
        """Count calls for the limits of the episode while the context is open.

        :param count: how many calls a request makes.
        :raises CallLimitError: the episode has reached its maximum number of calls.
        :raises TokenLimitError: it has reached its maximum number of sampled tokens.
        """
        rules, calls, tokens = self.rules, self.session.next_index, self.session.tokens
        most = rules.max_calls
        if most is not None and calls + self.calls_reserved + count > most:
            raise CallLimitError(
                f"call_limit: this episode may make {most} model calls, and has made {calls}: end "
                "the program"
            )
        if limit_reached(rules, 0, tokens):
            raise TokenLimitError(
                f"token_limit: this episode may sample {rules.max_tokens} tokens, and has sampled "
                f"{tokens}: end the program"
            )
        reserved = ReservedCalls(self, count)
        if rules.max_tokens is not None:
            reserved.most_tokens = max(1, (rules.max_tokens - tokens) // count)
        self.calls_reserved += count
        try:
            yield reserved
        finally:
            reserved.give_back()

    @property
    def running(self) -> int:
        """The number of calls being answered."""
        return len(self.calls_running) + (self.elsewhere.running if self.elsewhere else 0)

    @property
    def expires_at(self) -> float:
        """Clock time at which the lease expires unless it is renewed."""
        return min(self.ends_at, self.seen_at + self.record.lease_seconds)

    def begin(self, work: Coroutine[Any, Any, T], *, is_open: bool) -> asyncio.Task[T]:
        """Run `work` in a task as one of the episode's calls.

        :param is_open: whether the process that answers calls still has the episode.
        :raises EpisodeClosedError: it has not, or the episode is being closed: running calls are
            cancelled only once.
        """
        if not is_open or self.calls_over or self.closing.locked():
            work.close()
            raise EpisodeClosedError(
                f"episode {self.record.episode_id} was closed before this call began"
            )
        task = asyncio.create_task(work)
        self.calls_running.add(task)
        return task

    async def look(self, seen: Mapping[str, int], now: float) -> RunningSnapshot | None:
        """Return the calls being answered with what they have sampled, for those who watch.

        :param seen: as for `RunningCalls.look`.
        :param now: Unix seconds.
        :return: None if the process that answers the calls does not say.
        """
        here = self.session.running.look(seen, now)
        return here if self.elsewhere is None else await self.elsewhere.look(seen)

    async def cancel_calls(self) -> None:
        """Cancel running calls; what they sampled is recorded when this returns."""
        running = list(self.calls_running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if self.elsewhere is not None:
            await self.elsewhere.close()


class OpenEpisodes:
    """Open episodes by id.

    :param clock: seconds, monotonic.
    :param wall_clock: Unix time in seconds, as in the records.
    :param max_seconds: the longest time an episode may be open.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        max_seconds: float = math.inf,
    ) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self.max_seconds = max_seconds
        self._open: dict[str, OpenEpisode] = {}
        self._leases = LeaseWatch()
        self._silences = LeaseWatch()
        # By client that returned after a silence: how many seconds it may be silent.
        self._patience: dict[str, float] = {}
        # Clock time of the last claim, call or removal.
        self._moved_at = clock()
        self._listeners: list[Callable[[], None]] = []

    def __iter__(self) -> Iterator[OpenEpisode]:
        return iter(list(self._open.values()))

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, episode_id: str) -> bool:
        return episode_id in self._open

    def __getitem__(self, episode_id: str) -> OpenEpisode:
        return self._open[episode_id]

    def get(self, episode_id: str) -> OpenEpisode | None:
        """Return the open episode with this id, None if there is none."""
        return self._open.get(episode_id)

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever the first episode has been opened or the last one closed."""
        self._listeners.append(listener)

    def still(self, since: float) -> float:
        """Return the seconds since the last claim, call or end.

        :param since: clock time of another change, which counts too.
        """
        return self._clock() - max(since, self._moved_at)

    def opened(self, record: EpisodeRecord, session: Session) -> OpenEpisode:
        """Create an episode whose lease starts now; `add` registers it."""
        now = self._clock()
        # A wall clock that was set back must not extend the time the episode may be open.
        age = max(0.0, self._wall_clock() - record.created_at)
        return OpenEpisode(
            record, session, seen_at=now, called_at=now, ends_at=now + self.max_seconds - age
        )

    def add(self, episode: OpenEpisode) -> None:
        """Register an episode and watch its lease."""
        episode_id = episode.record.episode_id
        self._open[episode_id] = episode
        self._moved_at = episode.seen_at
        self._leases.add(episode.expires_at, episode_id)
        if (silent_at := self._silent_at(episode)) is not None:
            self._silences.add(silent_at, episode_id)
        if len(self._open) == 1:
            self._notify()

    def remove(self, episode_id: str) -> None:
        """Remove an episode that is over."""
        del self._open[episode_id]
        self._moved_at = self._clock()
        if not self._open:
            self._notify()

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()

    def saw(self, episode: OpenEpisode) -> bool:
        """Record a sign of life, which renews the lease.

        :return: whether the episode was silent before.
        """
        now = self._clock()
        was_silent = episode.silent
        if was_silent:
            client_id = episode.record.client_id
            patience = min(_MOST_PATIENCE, _PATIENCE * (now - episode.seen_at))
            self._patience[client_id] = max(patience, self._patience.get(client_id, 0.0))
        episode.seen_at = now
        if was_silent:
            episode.silent = False
            self._silences.add(self._silent_at(episode) or now, episode.record.episode_id)
        return was_silent

    def called(self, episode: OpenEpisode) -> None:
        """Record that a call of the episode began or ended."""
        episode.called_at = self._moved_at = self._clock()

    def lease_left(self, episode: OpenEpisode) -> float:
        """Return the seconds until the lease expires."""
        return max(0.0, episode.expires_at - self._clock())

    @contextlib.contextmanager
    def running_call(
        self, episode: OpenEpisode, work: Coroutine[Any, Any, T]
    ) -> Iterator[asyncio.Task[T]]:
        """Run `work` in a task as one of the episode's calls while the context is open.

        :raises EpisodeClosedError: the episode is over or being closed.
        """
        is_open = self._open.get(episode.record.episode_id) is episode
        task = episode.begin(work, is_open=is_open)
        self._moved_at = self._clock()
        try:
            yield task
        finally:
            episode.calls_running.discard(task)
            self.called(episode)

    def expired(self) -> list[OpenEpisode]:
        """Return the episodes whose leases have expired."""
        return [self._open[i] for i in self._leases.expired(self._clock(), self._lease_end)]

    def newly_silent(self) -> list[OpenEpisode]:
        """Mark and return the episodes whose clients have missed their heartbeats."""
        silent = [
            self._open[i] for i in self._silences.expired(self._clock(), self._silence_begins)
        ]
        for episode in silent:
            episode.silent = True
        return silent

    def seconds_to_look(self) -> float:
        """Return the seconds until the next lease or silence must be checked."""
        now = self._clock()
        looks = [look for watch in (self._leases, self._silences) if (look := watch.next_look())]
        return min(_LOOK_SECONDS, max(0.05, min(looks) - now)) if looks else _LOOK_SECONDS

    def _lease_end(self, episode_id: str) -> float | None:
        """Return when a lease expires unless it is renewed; None if the episode is over."""
        episode = self._open.get(episode_id)
        if episode is None:
            return None
        if episode.running:
            # The response renews the lease.
            return min(episode.ends_at, self._clock() + episode.record.lease_seconds)
        return episode.expires_at

    def _silence_begins(self, episode_id: str) -> float | None:
        """Return when a client counts as silent; None if the episode is over or already silent."""
        episode = self._open.get(episode_id)
        if episode is None or episode.silent:
            return None
        if episode.running:
            return self._clock() + BEATS_MISSED * (episode.record.heartbeat_seconds or 1.0)
        return self._silent_at(episode)

    def _silent_at(self, episode: OpenEpisode) -> float | None:
        """Return the clock time at which heartbeats count as missed; None if none were promised."""
        promised = episode.record.heartbeat_seconds
        if promised is None:
            return None
        patience = self._patience.get(episode.record.client_id, 0.0)
        return episode.seen_at + max(BEATS_MISSED * promised, patience)
