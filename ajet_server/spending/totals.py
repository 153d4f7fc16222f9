"""Totals of what a run has spent, at the present prices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ajet_core.protocol import PaidUse
from ajet_installation.settings import CostSettings
from ajet_server.spending.ledger import NANO, WHOLE_PHASE, Paid

PAUSED = "paused"
_HOUR = 3600.0
_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class SpendingTotals:
    """Sums over the entries of a ledger.

    :param spent: `Entries.seconds`.
    :param paid: `Entries.paid`.
    """

    spent: Mapping[tuple[str, str], float]
    paid: Mapping[tuple[str, str], Paid]
    costs: CostSettings

    def seconds(self) -> dict[str, float]:
        """Return the time of each phase."""
        return {phase: value for (phase, kind), value in self.spent.items() if kind == WHOLE_PHASE}

    def active_hours(self) -> float:
        """Return the hours of all phases but pauses."""
        phases = self.seconds()
        return math.fsum(value for phase, value in phases.items() if phase != PAUSED) / _HOUR

    def device_hours(self) -> dict[str, float]:
        """Return devices times hours, by phase."""
        return self._hours(lambda phase, _: phase)

    def hours_by_kind(self) -> dict[str, float]:
        """Return devices times hours, by kind of device."""
        return self._hours(lambda _, kind: kind)

    def _hours(self, by: Callable[[str, str], str]) -> dict[str, float]:
        hours: dict[str, float] = {}
        for (phase, kind), value in sorted(self.spent.items()):
            if kind != WHOLE_PHASE:
                key = by(phase, kind)
                hours[key] = hours.get(key, 0.0) + value / _HOUR
        return hours

    def device_usd(self) -> float:
        """Return the cost of the devices that have a price."""
        prices = self.costs.device_hour
        hours = self.hours_by_kind()
        return math.fsum(value * prices[kind] for kind, value in hours.items() if kind in prices)

    def uses(self) -> list[PaidUse]:
        """Return what clients paid, by source and model."""
        return [
            PaidUse(
                source=source,
                model=model,
                usd=self._usd_of(model, paid),
                input_tokens=paid.input_tokens,
                output_tokens=paid.output_tokens,
            )
            for (source, model), paid in sorted(self.paid.items())
        ]

    def usd(self) -> float:
        """Return the cost of all that has a price."""
        paid = (self._usd_of(model, paid) for (_, model), paid in self.paid.items())
        return math.fsum([self.device_usd(), *(usd for usd in paid if usd is not None)])

    def _usd_of(self, model: str, paid: Paid) -> float | None:
        """Return the cost of reports; None if their model has no price."""
        if not model:
            return paid.nano_usd / NANO
        price = self.costs.models.get(model)
        if price is None:
            return None
        return (paid.input_tokens * price.input + paid.output_tokens * price.output) / _MILLION
