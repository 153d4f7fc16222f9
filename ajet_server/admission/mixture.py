"""How the places of a batch are shared out among tags: pure arithmetic, no I/O, no time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

# Ratios are binary fractions: 0.3 * 10 is to be 3 and not 2 and a rest.
_DIGITS = 9


@dataclass(slots=True)
class Shares:
    """Shares batch after batch out by the ratios of tags.

    No batch has a whole place more or less of a tag than its ratio asks for, and what rounding took from a tag in one
    batch it gets back in a later one, so that the sum over batches follows the ratios too.

    :param ratios: by tag; they sum to 1.
    :ivar credit: by tag, the part of a place that it is owed.
    """

    ratios: Mapping[str, float]
    credit: dict[str, float] = field(default_factory=dict)

    def quotas(self, places: int, without: Set[str] = frozenset()) -> dict[str, int]:
        """The places of each tag in the next batch; `commit` it once the batch is made.

        :param without: tags that get none; the others share what these would have had.
        """
        exact = self._exact(places, without)
        quotas = {tag: math.floor(value) for tag, value in exact.items()}
        rest = {tag: value - quotas[tag] for tag, value in exact.items() if value > quotas[tag]}
        owed = sorted(rest, key=lambda tag: (-(self.credit.get(tag, 0.0) + rest[tag]), tag))
        for tag in owed[: places - sum(quotas.values())]:
            quotas[tag] += 1
        return quotas

    def first_of(self, places: int, batch: Mapping[str, int]) -> dict[str, int]:
        """Some of the places of a batch, shared out by the ratios too.

        Fewer places are not just less of each tag: rounding may give a place to a tag that has none
        among more places.

        :param batch: the places of each tag in the whole batch, which are not fewer than `places`.
        """
        without = self.ratios.keys() - batch.keys()
        found = {
            tag: min(n, batch[tag])
            for tag, n in self.quotas(places, without).items()
            if tag in batch
        }
        for tag in sorted(batch, key=lambda tag: (found.get(tag, 0) - batch[tag], tag)):
            more = min(batch[tag] - found.get(tag, 0), places - sum(found.values()))
            found[tag] = found.get(tag, 0) + more
        return found

    def commit(self, places: int, without: Set[str] = frozenset()) -> None:
        """Take note that a batch was made of `quotas` of the same arguments."""
        quotas = self.quotas(places, without)
        for tag, value in self._exact(places, without).items():
            owed = self.credit.get(tag, 0.0) + value - quotas[tag]
            self.credit[tag] = round(owed, _DIGITS)

    def _exact(self, places: int, without: Set[str]) -> dict[str, float]:
        """Fractions of places, 0 for those without; all 0 if nobody is left."""
        total = math.fsum(r for tag, r in self.ratios.items() if tag not in without)
        return {
            tag: round(places * ratio / total, _DIGITS) if tag not in without and total else 0.0
            for tag, ratio in self.ratios.items()
        }
