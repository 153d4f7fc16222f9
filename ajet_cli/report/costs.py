"""What a run has spent, as tables."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ajet_cli.report.markup import NAME_CHARS, Html, cut, joined, table, tag
from ajet_cli.words import duration, number
from ajet_server.spending.totals import SpendingTotals

_MOST_USES = 60


def costs(totals: SpendingTotals | None) -> Html:
    """Return tables of the time by phase and of the costs; nothing if nothing was spent."""
    if totals is None or not (totals.spent or totals.paid):
        return Html("")
    uses = len(totals.paid)
    return joined(
        table(
            "Time by phase, of all starts of the server",
            ["phase", "time", "device-hours"],
            _times(totals),
            right="12",
        )
        if totals.spent
        else None,
        table(
            "Costs, at the prices that are set now",
            ["", "device-hours", "input tokens", "output tokens", "USD"],
            _costs(totals),
            right="1234",
        ),
        tag("p", {"class": "dim"}, f"{number(uses - _MOST_USES)} more payments are left out.")
        if uses > _MOST_USES
        else None,
        tag("p", {"class": "dim"}, "docs/spending.md explains what is counted."),
    )


def _times(totals: SpendingTotals) -> Iterator[list[str]]:
    seconds, hours = totals.seconds(), totals.device_hours()
    for phase, value in sorted(seconds.items(), key=lambda item: -item[1]):
        yield [cut(phase, NAME_CHARS), duration(value), number(hours.get(phase, 0.0))]
    yield [
        "total",
        duration(math.fsum(seconds.values())),
        number(math.fsum(hours.values())),
    ]


def _costs(totals: SpendingTotals) -> Iterator[list[str]]:
    for kind, hours in totals.hours_by_kind().items():
        price = totals.costs.device_hour.get(kind)
        usd = None if price is None else price * hours
        yield [cut(kind, NAME_CHARS), number(hours), "", "", _usd(usd)]
    uses = totals.uses()
    for use in uses[:_MOST_USES]:
        tokens = [number(use.input_tokens), number(use.output_tokens)] if use.model else ["", ""]
        what = cut(f"{use.source} {use.model}".rstrip(), NAME_CHARS)
        yield [what, "", *tokens, _usd(use.usd)]
    yield [
        "total of what has a price",
        number(math.fsum(totals.hours_by_kind().values())),
        number(sum(use.input_tokens for use in uses)),
        number(sum(use.output_tokens for use in uses)),
        _usd(totals.usd()),
    ]


def _usd(amount: float | None) -> str:
    return "no price" if amount is None else f"{amount:.2f}"
