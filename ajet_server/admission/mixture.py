"""Divide the slots of a batch among tags: pure arithmetic, no I/O, no clock."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

# Rounding removes binary errors: 0.3 * 10 must give exactly 3.
_DIGITS = 9


@dataclass(slots=True)
class Shares:
    """Divides the slots of successive batches by the ratios of tags.

    In each batch, a tag's slots differ from its exact share by less than one. What rounding
    takes from a tag in one batch is returned in a later one, so the totals follow the ratios too.

    :param ratios: by tag; they sum to 1.
    :ivar credit: by tag, the fraction of a slot that the tag is owed.
    """

    ratios: Mapping[str, float]
    credit: dict[str, float] = field(default_factory=dict)

    def quotas(self, slots: int, without: Set[str] = frozenset()) -> dict[str, int]:
        """Return the slots of each tag in the next batch; call `commit` once the batch is made.

        :param without: tags that get no slots; the others share theirs.
        """
        exact = self._exact(slots, without)
        quotas = {tag: math.floor(value) for tag, value in exact.items()}
        rest = {tag: value - quotas[tag] for tag, value in exact.items() if value > quotas[tag]}
        owed = sorted(rest, key=lambda tag: (-(self.credit.get(tag, 0.0) + rest[tag]), tag))
        for tag in owed[: slots - sum(quotas.values())]:
            quotas[tag] += 1
        return quotas

    def first_of(self, slots: int, batch: Mapping[str, int]) -> dict[str, int]:
        """Choose some of the slots of a batch, also divided by the ratios.

        Fewer slots do not simply mean fewer for each tag: rounding may give a slot to a tag that
        has none among more slots.

        :param batch: the slots of each tag in the whole batch, at least `slots` in all.
        """
        without = self.ratios.keys() - batch.keys()
        shares = {
            tag: min(n, batch[tag])
            for tag, n in self.quotas(slots, without).items()
            if tag in batch
        }
        for tag in sorted(batch, key=lambda tag: (shares.get(tag, 0) - batch[tag], tag)):
            more = min(batch[tag] - shares.get(tag, 0), slots - sum(shares.values()))
            shares[tag] = shares.get(tag, 0) + more
        return shares

    def commit(self, slots: int, without: Set[str] = frozenset()) -> None:
        """Record that a batch was made with the `quotas` of the same arguments."""
        quotas = self.quotas(slots, without)
        for tag, value in self._exact(slots, without).items():
            owed = self.credit.get(tag, 0.0) + value - quotas[tag]
            self.credit[tag] = round(owed, _DIGITS)

    def _exact(self, slots: int, without: Set[str]) -> dict[str, float]:
        """Return fractions of slots, 0 for the tags in `without`; all 0 if no tag is left."""
        total = math.fsum(r for tag, r in self.ratios.items() if tag not in without)
        return {
            tag: round(slots * ratio / total, _DIGITS) if tag not in without and total else 0.0
            for tag, ratio in self.ratios.items()
        }
