"""The numbers of a report, each defined once."""

from __future__ import annotations

from dataclasses import dataclass, field

from ajet_research.events import LookFinding
from ajet_research.report.document import Cell, Exact, Reference, Span, TableRow, Text

STUDY = "study"
"""The id of the registered study, to which the words of its author link."""


@dataclass(slots=True)
class DefinedNumbers:
    """The numbers of a document: each is defined once, with its formula and what it comes from."""

    rows: dict[str, TableRow] = field(default_factory=dict)
    links: dict[str, Reference] = field(default_factory=dict)

    def __call__(
        self, id_: str, value: float | None, formula: str, *, of: Cell = (), digits: int = 4
    ) -> Reference:
        """Define a number, and return a link that shows it."""
        label = "none" if value is None else shown(value, digits)
        exact = "none" if value is None else repr(value)
        target = f"number-{id_}"
        cells: list[Cell] = [(Exact(id_),), (Exact(exact),), (Exact(formula),), of]
        self.rows[target] = TableRow(cells, target)
        self.links[id_] = Reference(label, target)
        return self.links[id_]


def shown(value: float, digits: int) -> str:
    """Return a number with so many significant digits; whole numbers as they are."""
    return str(value) if isinstance(value, int) else f"{value:.{digits}g}"


def interval_of(numbers: DefinedNumbers, id_: str, finding: LookFinding) -> list[Span]:
    """Return the difference of a comparison, with its interval."""
    of = (Reference("pairs", f"pairs-{id_}"),)
    gain = numbers(
        f"{id_}.gain",
        finding.gain,
        "mean over pairs of the outcome of the arm minus that of the other with the same seed; "
        "positive if the arm is better",
        of=of,
    )
    level = numbers(
        f"{id_}.confidence",
        1 - finding.alpha,
        "1 - alpha of the look / number of comparisons",
    )
    low = numbers(
        f"{id_}.low", finding.low, "lower end of the interval that inverts the test", of=of
    )
    high = numbers(
        f"{id_}.high", finding.high, "upper end of the interval that inverts the test", of=of
    )
    return [
        *(gain, Text(" (from "), low, Text(" to "), high),
        *(Text(" with confidence "), level, Text(")")),
    ]
