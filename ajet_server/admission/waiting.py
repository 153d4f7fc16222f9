"""Claims that wait for a place, in the order they came, found by group."""

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
    """A claimed episode and its key, which exists here and at the client only."""

    record: EpisodeRecord
    api_key: str = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """A claim that waits.

    :param group: None for an episode that needs no place in a batch.
    :param number: grows in the order of arrival.
    """

    request: ClaimRequest
    client_id: str
    group: str | None
    granted: asyncio.Future[Granted]
    number: int = field(default_factory=itertools.count().__next__)


class WaitingLine:
    """Who is next does not depend on how many wait for places that they cannot have."""

    def __init__(self) -> None:
        # Plain dicts get slow where the first of many entries is removed again and again.
        self._tickets: OrderedDict[int, Ticket] = OrderedDict()
        self._groups: dict[str | None, OrderedDict[int, Ticket]] = {}
        # Those that need a place.
        self._tags: dict[str, OrderedDict[int, Ticket]] = {}

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self._tickets.values())

    def add(self, ticket: Ticket) -> None:
        """Put a ticket at the end."""
        self._tickets[ticket.number] = ticket
        self._groups.setdefault(ticket.group, OrderedDict())[ticket.number] = ticket
        if ticket.group is not None:
            self._tags.setdefault(ticket.request.tag, OrderedDict())[ticket.number] = ticket

    def discard(self, ticket: Ticket) -> None:
        """Take a ticket out, if it is in."""
        if self._tickets.pop(ticket.number, None) is not None:
            _remove(self._groups, ticket.group, ticket.number)
            if ticket.group is not None:
                _remove(self._tags, ticket.request.tag, ticket.number)

    @property
    def tags(self) -> Set[str]:
        """Tags of the episodes that need a place."""
        return self._tags.keys()

    def of_tag(self, tag: str) -> list[Ticket]:
        """Tickets for places of a tag."""
        return list(self._tags.get(tag, {}).values())

    def next(self, builder: BatchBuilder) -> Ticket | None:
        """The ticket that came first of those that need not wait any longer, None if all have to."""
        firsts = [next(iter(self._groups[group].values())) for group in self._decided(builder)]
        for tag, tickets in self._tags.items():
            if builder.takes(tag):
                # Only groups whose places are all taken are passed over.
                firsts += itertools.islice(
                    (t for t in tickets.values() if builder.may_begin(t.group or "", tag)),
                    1,
                )
        return min(firsts, key=lambda ticket: ticket.number, default=None)

    def _decided(self, builder: BatchBuilder) -> Iterator[str | None]:
        """Groups that wait though they need not."""
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
