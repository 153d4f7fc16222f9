"""Whose episodes are whose, and how much each token may use at once.

A tenant is a token: its id is the `client_id` of the episodes it claimed. Everything here is looked at for every
request, so it counts in memory and is right by itself after a restart.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass

from ajet_core.errors import AuthError, BusyError, RequestError
from ajet_core.interfaces import EpisodeRecord
from ajet_core.protocol import TokenQuotas
from ajet_server.security.tokens import Token, TokenBook

OWN_TENANTS = frozenset({"control", "client"})
"""The ids of the server's own two tokens, which live as long as the server and have no quotas of their own."""

_GROUP_MARK = "\x1f"
_NO_QUOTAS = TokenQuotas()
_MINUTE = 60.0
_RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """Limits of the server that hold for everybody.

    :param open_episodes: of all tenants together.
    :param calls_at_once: model calls of one episode being answered.
    :param calls_per_episode: model calls of one episode, ever.
    :param event_streams: open readers of events, of all tokens together.
    """

    open_episodes: int
    calls_at_once: int
    calls_per_episode: int
    event_streams: int


class Tenants:
    """What each token uses, and whether it may use more.

    :param wall_clock: unix seconds.
    :param clock: seconds, monotonic; for rates.
    """

    def __init__(
        self,
        book: TokenBook,
        limits: TenantLimits,
        *,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._book = book
        self._limits = limits
        self._wall_clock = wall_clock
        self._clock = clock
        self._open: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self._episode_calls: Counter[str] = Counter()
        self._streams: Counter[str] = Counter()
        self._buckets: dict[str, _Bucket] = {}

    def why_dead(self, tenant: str) -> str:
        """Why a tenant is none any more; "" if it is one."""
        if tenant in OWN_TENANTS:
            return ""
        token = self._book.get(tenant)
        return "there is none of its id" if token is None else token.why_dead(self._wall_clock())

    def require_live(self, tenant: str) -> None:
        """What an episode's key asks before it opens anything.

        :raises AuthError: the token that claimed the episode was revoked or has expired.
        """
        if tenant not in OWN_TENANTS and (why := self.why_dead(tenant)):
            raise AuthError(f"the token that claimed this episode is no longer valid: {why}")

    def dead(self) -> dict[str, str]:
        """Tenants that have open episodes, waiting claims or event streams though their token is dead, and why it is."""
        using = (*self._open, *self._waiting, *self._streams)
        found = {tenant: self.why_dead(tenant) for tenant in using}
        return {tenant: why for tenant, why in found.items() if why}

    @property
    def active(self) -> Set[str]:
        """Tenants that have open episodes or waiting claims."""
        return self._open.keys() | self._waiting.keys()

    # --- Episodes ---------------------------------------------------------------------------------

    def open(self, record: EpisodeRecord) -> None:
        """Count an episode that is to begin.

        :raises BusyError: its tenant, or the server, has as many as it may.
        :raises AuthError: its tenant is none any more.
        """
        tenant = record.client_id
        self.require_live(tenant)
        if (total := self._open.total()) >= self._limits.open_episodes:
            raise BusyError(
                f"{total} episodes are open, the limit of this server (setting server.max_open_episodes): "
                "end or abort some",
                retry_after=_RETRY_SECONDS,
            )
        self._check(tenant, "open_episodes", self._open[tenant], "end or abort some")
        self.reopen(record)

    def reopen(self, record: EpisodeRecord) -> None:
        """Count an episode that was open when the server was started."""
        self._open[record.client_id] += 1

    def closed(self, record: EpisodeRecord) -> None:
        """An episode is over, or never began."""
        _take(self._open, record.client_id)

    @contextmanager
    def waiting(self, tenant: str) -> Iterator[None]:
        """While the block runs, a claim of the tenant waits.

        :raises BusyError: it has as many waiting as it may.
        """
        waiting = self._waiting[tenant]
        with self._using(self._waiting, tenant):
            self._check(tenant, "waiting_claims", waiting, "let some of them be granted first")
            yield

    # --- Calls and requests -----------------------------------------------------------------------

    @contextmanager
    def call(self, record: EpisodeRecord, made: int) -> Iterator[None]:
        """While the block runs, a model call of the episode is answered.

        :param made: calls that the episode has made before.
        :raises BusyError: it, or its tenant, has as many as it may.
        """
        limits, episode, tenant = self._limits, record.episode_id, record.client_id
        if made >= limits.calls_per_episode:
            raise BusyError(
                f"the episode has made {made} calls, the limit of this server "
                "(setting server.max_calls_per_episode): end it"
            )
        if (running := self._episode_calls[episode]) >= limits.calls_at_once:
            raise BusyError(
                f"{running} calls of the episode are being answered, the limit of this server "
                "(setting server.max_calls_at_once)",
                retry_after=_RETRY_SECONDS,
            )
        self._check(tenant, "calls_at_once", self._calls[tenant], "wait for an answer")
        self._episode_calls[episode] += 1
        self._calls[tenant] += 1
        try:
            yield
        finally:
            _take(self._episode_calls, episode)
            _take(self._calls, tenant)

    @contextmanager
    def stream(self, token: Token) -> Iterator[None]:
        """While the block runs, the token's holder reads events.

        :raises BusyError: it, or the server, has as many readers as it may.
        """
        if (total := self._streams.total()) >= self._limits.event_streams:
            raise BusyError(
                f"{total} readers of events are connected, the limit of this server "
                "(setting server.max_event_streams)",
                retry_after=_RETRY_SECONDS,
            )
        self._check(token.token_id, "event_streams", self._streams[token.token_id], "close one")
        with self._using(self._streams, token.token_id):
            yield

    def request(self, token: Token) -> None:
        """Count a request.

        :raises BusyError: the token's rate is used up.
        """
        rate = token.quotas.requests_per_minute
        if rate is None:
            return
        now = self._clock()
        bucket = self._buckets.get(token.token_id)
        if bucket is None:
            bucket = self._buckets[token.token_id] = _Bucket(float(rate), now)
        if (wait := bucket.take(rate, now)) > 0:
            raise BusyError(
                f"the quota requests_per_minute of this token ({rate}) is used up",
                retry_after=math.ceil(wait),
            )

    # --- Inside -----------------------------------------------------------------------------------

    def _check(self, tenant: str, quota: str, used: int, advice: str) -> None:
        if tenant in OWN_TENANTS:
            return
        token = self._book.get(tenant)
        limit = getattr(_NO_QUOTAS if token is None else token.quotas, quota)
        if limit is not None and used >= limit:
            raise BusyError(
                f"the quota {quota} of this token ({limit}) is used up: {advice}",
                retry_after=_RETRY_SECONDS,
            )

    @contextmanager
    def _using(self, counter: Counter[str], key: str) -> Iterator[None]:
        counter[key] += 1
        try:
            yield
        finally:
            _take(counter, key)


@dataclass(slots=True)
class _Bucket:
    """A token bucket: as many requests at once as a minute has, refilled evenly."""

    left: float
    at: float

    def take(self, rate: int, now: float) -> float:
        """Take one; seconds until there is one to take, if there is none."""
        self.left = min(float(rate), self.left + (now - self.at) * rate / _MINUTE)
        self.at = now
        if self.left >= 1.0:
            self.left -= 1.0
            return 0.0
        return (1.0 - self.left) * _MINUTE / rate


def stored_group(tenant: str, group: str) -> str:
    """The name under which a tenant's group is stored.

    Rewards of a group are compared with each other, so groups of two tenants are two, whatever they call them.
    Those of the server's own tokens are kept as they are called.

    :raises RequestError: the name could be taken for another tenant's.
    """
    if _GROUP_MARK in group:
        raise RequestError("group: the character U+001F cannot be in its name", param="group")
    return group if tenant in OWN_TENANTS else f"{tenant}{_GROUP_MARK}{group}"


def shown_group(group: str) -> str:
    """A stored group as its tenant calls it."""
    return group.rpartition(_GROUP_MARK)[2]


def _take(counter: Counter[str], key: str) -> None:
    """One less; keys without any are not kept, so that nothing grows with the number of episodes."""
    counter[key] -= 1
    if counter[key] <= 0:
        del counter[key]
