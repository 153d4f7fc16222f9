"""Track the episodes, calls and streams of each tenant, and enforce quotas and limits.

A tenant is a token: its id is the `client_id` of the episodes that it claimed. Every request reads
these counts, so they are kept in memory and are rebuilt after a restart.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from ajet_core.errors import AuthError, BusyError, RequestError
from ajet_core.interfaces import EpisodeRecord
from ajet_core.protocol import TokenQuotas
from ajet_server.security.credentials import Token

OWN_TENANTS = frozenset({"control", "client"})
"""The ids of the server's own two tokens, which are always valid and have no quotas."""

_GROUP_MARK = "\x1f"
_NO_QUOTAS = TokenQuotas()
_MINUTE = 60.0
_RETRY_SECONDS = 1.0


class TokenSource(Protocol):
    """Where tokens are looked up."""

    def get(self, token_id: str, /) -> Token | None:
        """Return a token, None if it is unknown."""


class _NoTokens:
    """A source without tokens, so that only the server's limits apply."""

    def get(self, _: str, /) -> Token | None:
        return None


NO_TOKENS: TokenSource = _NoTokens()
"""For a process that does not know the quotas of tokens."""


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """Limits of the server that apply to all tenants.

    :param open_episodes: open episodes of all tenants together.
    :param waiting_claims: waiting claims of all tenants together.
    :param calls_at_once: concurrent model calls of one episode.
    :param calls_per_episode: model calls of one episode in total.
    :param event_streams: open event streams of all tokens together.
    """

    open_episodes: int
    waiting_claims: int
    calls_at_once: int
    calls_per_episode: int
    event_streams: int


class Tenants:
    """Counts what each token uses, and refuses what exceeds its quotas or the server's limits.

    :param wall_clock: unix seconds.
    :param clock: seconds, monotonic; for rates.
    """

    def __init__(
        self,
        book: TokenSource,
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
        """Why a tenant's token is no longer valid; "" if it is valid."""
        if tenant in OWN_TENANTS:
            return ""
        token = self._book.get(tenant)
        return "it does not exist" if token is None else token.why_dead(self._wall_clock())

    def require_live(self, tenant: str) -> None:
        """Check that the token that claimed an episode is still valid.

        :raises AuthError: the token was revoked or has expired.
        """
        if tenant not in OWN_TENANTS and (why := self.why_dead(tenant)):
            raise AuthError(f"the token that claimed this episode is no longer valid: {why}")

    def dead(self) -> dict[str, str]:
        """Return the active tenants whose token is no longer valid, each with the reason.

        A tenant is active if it has open episodes, waiting claims or event streams.
        """
        using = (*self._open, *self._waiting, *self._streams)
        reasons = {tenant: self.why_dead(tenant) for tenant in using}
        return {tenant: why for tenant, why in reasons.items() if why}

    @property
    def active(self) -> Set[str]:
        """The tenants that have open episodes or waiting claims."""
        return self._open.keys() | self._waiting.keys()

    @property
    def open_episodes(self) -> int:
        """The number of open episodes of all tenants."""
        return self._open.total()

    # --- Episodes ---------------------------------------------------------------------------------

    def require_room(self) -> None:
        """Check that the server may have one more open episode.

        :raises BusyError: the server has reached its limit of open episodes.
        """
        if (total := self._open.total()) >= self._limits.open_episodes:
            raise BusyError(
                f"{total} episodes are open, the limit of this server (setting "
                "server.max_open_episodes): end or abort some",
                retry_after=_RETRY_SECONDS,
            )

    def open(self, record: EpisodeRecord) -> None:
        """Count an episode that is about to start.

        :raises BusyError: the tenant or the server has reached its limit of open episodes.
        :raises AuthError: the tenant's token is no longer valid.
        """
        tenant = record.client_id
        self.require_live(tenant)
        self.require_room()
        self._check(tenant, "open_episodes", self._open[tenant], "end or abort some")
        self.reopen(record)

    def reopen(self, record: EpisodeRecord) -> None:
        """Count an episode without checks, such as one that was open when the server started."""
        self._open[record.client_id] += 1

    def closed(self, record: EpisodeRecord) -> None:
        """Uncount an episode that has ended or never started."""
        _take(self._open, record.client_id)

    @contextmanager
    def waiting(self, tenant: str) -> Iterator[None]:
        """Count a waiting claim of the tenant while the block runs.

        :raises BusyError: the tenant or the server has reached its limit of waiting claims.
        """
        if (total := self._waiting.total()) >= self._limits.waiting_claims:
            raise BusyError(
                f"{total} claims are waiting, the limit of this server (setting "
                "server.max_waiting_claims)",
                retry_after=_RETRY_SECONDS,
            )
        waiting = self._waiting[tenant]
        with self._using(self._waiting, tenant):
            self._check(tenant, "waiting_claims", waiting, "wait until some of them are granted")
            yield

    # --- Calls and requests -----------------------------------------------------------------------

    @contextmanager
    def call(self, record: EpisodeRecord, calls_before: int) -> Iterator[None]:
        """Count a model call of the episode while the block runs.

        :param calls_before: number of calls that the episode has made before.
        :raises BusyError: the episode or its tenant has reached its limit of calls.
        """
        limits, episode, tenant = self._limits, record.episode_id, record.client_id
        if calls_before >= limits.calls_per_episode:
            raise BusyError(
                f"the episode has made {calls_before} calls, the limit of this server (setting "
                "server.max_calls_per_episode): end it"
            )
        if (running := self._episode_calls[episode]) >= limits.calls_at_once:
            raise BusyError(
                f"{running} calls of the episode are in progress, the limit of this server "
                "(setting server.max_calls_at_once)",
                retry_after=_RETRY_SECONDS,
            )
        self._episode_calls[episode] += 1
        try:
            with self.call_of(tenant):
                yield
        finally:
            _take(self._episode_calls, episode)

    @contextmanager
    def call_of(self, tenant: str) -> Iterator[None]:
        """Count a model call of the tenant while the block runs.

        :raises BusyError: the tenant has reached its limit of calls.
        """
        self._check(tenant, "calls_at_once", self._calls[tenant], "wait until a call completes")
        with self._using(self._calls, tenant):
            yield

    def limits_calls(self, tenant: str) -> bool:
        """Return whether the calls that a tenant makes at once are limited."""
        token = None if tenant in OWN_TENANTS else self._book.get(tenant)
        return token is not None and token.quotas.calls_at_once is not None

    @contextmanager
    def stream(self, token: Token) -> Iterator[None]:
        """Count an event stream of the token while the block runs.

        :raises BusyError: the token or the server has reached its limit of event streams.
        """
        if (total := self._streams.total()) >= self._limits.event_streams:
            raise BusyError(
                f"{total} event streams are open, the limit of this server (setting "
                "server.max_event_streams)",
                retry_after=_RETRY_SECONDS,
            )
        self._check(token.token_id, "event_streams", self._streams[token.token_id], "close one")
        with self._using(self._streams, token.token_id):
            yield

    def request(self, token: Token) -> None:
        """Count a request of the token.

        :raises BusyError: the token has used up its requests per minute.
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
                f"this token's quota requests_per_minute ({rate}) is used up",
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
                f"this token's quota {quota} ({limit}) is used up: {advice}",
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
    """A token bucket: it holds the requests of one minute and refills evenly."""

    left: float
    at: float

    def take(self, rate: int, now: float) -> float:
        """Take one request; return 0, or the seconds until one is available."""
        self.left = min(float(rate), self.left + (now - self.at) * rate / _MINUTE)
        self.at = now
        if self.left >= 1.0:
            self.left -= 1.0
            return 0.0
        return (1.0 - self.left) * _MINUTE / rate


def stored_group(tenant: str, group: str) -> str:
    """Return the name under which a tenant's group is stored.

    Rewards are compared within a group, so groups of different tenants must stay separate even if
    they have the same name. Groups of the server's own tokens keep their names.

    :raises RequestError: the name contains the separator, and could be mistaken for another
        tenant's group.
    """
    if _GROUP_MARK in group:
        raise RequestError("group: names must not contain the character U+001F", param="group")
    return group if tenant in OWN_TENANTS else f"{tenant}{_GROUP_MARK}{group}"


def shown_group(group: str) -> str:
    """Return the tenant's name of a stored group."""
    return group.rpartition(_GROUP_MARK)[2]


def _take(counter: Counter[str], key: str) -> None:
    """Decrement a count, and drop it at zero so that the counter does not grow with episodes."""
    counter[key] -= 1
    if counter[key] <= 0:
        del counter[key]
