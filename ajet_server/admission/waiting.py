"""Claims that wait for a slot, in order of arrival, indexed by group."""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import TypeVar

from ajet_core.interfaces import EpisodeRecord
from ajet_core.protocol import ClaimRequest
from ajet_server.admission.batching import BatchBuilder

_Key = TypeVar("_Key", str, str | None)


@dataclass(frozen=True, slots=True)
class Granted:
    """A claimed episode and its key, which only this object and the client hold."""

    record: EpisodeRecord
    api_key: str = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """A waiting claim.

    :param group: None for an episode that needs no slot in a batch.
    :param number: increases in order of arrival.
    """

    request: ClaimRequest
    client_id: str
    group: str | None
    granted: asyncio.Future[Granted]
    number: int = field(default_factory=itertools.count().__next__)


class WaitingLine:
    """The queue of waiting claims.

    The cost of finding the next one does not depend on how many cannot have a slot.
    """

    def __init__(self) -> None:
        # A plain dict becomes slow when the first of many entries is removed repeatedly.
        self._tickets: OrderedDict[int, Ticket] = OrderedDict()
        self._groups: dict[str | None, OrderedDict[int, Ticket]] = {}
        # Tickets that need a slot, by tag.
        self._tags: dict[str, OrderedDict[int, Ticket]] = {}

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self._tickets.values())

    def add(self, ticket: Ticket) -> None:
        """Append a ticket."""
        self._tickets[ticket.number] = ticket
        self._groups.setdefault(ticket.group, OrderedDict())[ticket.number] = ticket
        if ticket.group is not None:
            self._tags.setdefault(ticket.request.tag, OrderedDict())[ticket.number] = ticket

    def discard(self, ticket: Ticket) -> None:
        """Remove a ticket if it is present."""
        if self._tickets.pop(ticket.number, None) is not None:
            _remove(self._groups, ticket.group, ticket.number)
            if ticket.group is not None:
                _remove(self._tags, ticket.request.tag, ticket.number)

    @property
    def tags(self) -> Set[str]:
        """The tags of the claims that need a slot."""
        return self._tags.keys()

    def of_tag(self, tag: str) -> list[Ticket]:
        """Return the tickets that need a slot of a tag."""
        return list(self._tags.get(tag, {}).values())

    def next(self, builder: BatchBuilder) -> Ticket | None:
        """Return the oldest ticket that can be granted, None if there is none."""
        firsts = [next(iter(self._groups[group].values())) for group in self._decided(builder)]
        for tag, tickets in self._tags.items():
            if builder.takes(tag):
                # This skips only groups that cannot start another episode.
                firsts += itertools.islice(
                    (t for t in tickets.values() if builder.may_begin(t.group or "", tag)),
                    1,
                )
        return min(firsts, key=lambda ticket: ticket.number, default=None)

    def _decided(self, builder: BatchBuilder) -> Iterator[str | None]:
        """Yield the waiting groups that can start an episode without a new slot."""
        if None in self._groups:
            yield None
        if len(builder.decided) < len(self._groups):
            yield from (group for group in builder.decided if group in self._groups)
        else:
            yield from (group for group in self._groups if group in builder.decided)


def _remove(
    index: dict[_Key, OrderedDict[int, Ticket]],
    key: _Key,
    number: int,
) -> None:
    tickets = index[key]
    del tickets[number]
    if not tickets:
        del index[key]
