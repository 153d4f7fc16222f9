"""What a search tried and what it chose: in a report, and never as a finding."""

from __future__ import annotations

import json
from collections.abc import Iterator

from ajet_research.analysis import search_value
from ajet_research.events import Proposed
from ajet_research.report.document import (
    Cell,
    Document,
    Exact,
    Quote,
    Reference,
    Span,
    TableRow,
    Text,
)
from ajet_research.report.numbers import STUDY, DefinedNumbers
from ajet_research.search.space import Search, chosen_level
from ajet_research.state import StudyState
from ajet_research.study import arm_name


def write_search(report: Document, state: StudyState, numbers: DefinedNumbers) -> None:
    """Write which candidates there were, and what the search chose."""
    if (search := state.registered.search) is None:
        return
    report.heading("Search")
    tried = sum(not one.refused for one in state.candidates)
    refused = len(state.candidates) - tried
    report.paragraph(
        Text("Candidates that were tried: "),
        numbers("candidates", tried, "candidates of the search with trials"),
        Text("; refused before a trial: "),
        numbers("candidates.refused", refused, "candidates of the search without trials"),
        Text(
            ". The best of many is also the luckiest, so nothing is claimed from these trials: the "
            "verdicts of this report rest on trials with other seeds"
        ),
        Text(", and none of their tasks chose a candidate."),
    )
    if state.searching:
        report.paragraph(Text("The search did not end, so that nothing was chosen or confirmed."))
    else:
        report.items(_chosen(state, numbers, search))
    names = list(search.parameters)
    report.paragraph(Text("Mean outcome of each candidate in each rung, with the rung's seeds."))
    rungs = range(min(state.rung + 1, len(search.rungs)))
    report.table(
        ["candidate", "values", "proposed by", *("rung" for _ in rungs), "refused"],
        (_row(state, one, names, len(rungs)) for one in state.candidates),
    )


def _chosen(state: StudyState, numbers: DefinedNumbers, search: Search) -> Iterator[Cell]:
    """Yield what was chosen, with what it measured in the search and in its confirmation."""
    if not state.entered:
        yield (Text("No candidate has an outcome, so that nothing was chosen or confirmed."),)
    for rank, number in enumerate(state.entered, 1):
        level, last = chosen_level(rank), len(search.rungs) - 1
        target = f"candidate-{number}"
        place = (Reference("candidate", target),)
        values = _shown(state.candidates[number - 1], list(search.parameters))
        value = search_value(state, number, last)
        mean = numbers(f"{level}.search", value, "mean outcome in the last rung", of=place)
        spans: list[Span] = [
            *(Quote(level, STUDY), Text(" is "), Reference(values, target)),
            *(Text(". Mean outcome in the last rung: "), mean, Text(".")),
        ]
        for one in state.registered.compare:
            finding = state.verdicts.get(one.id)
            if finding is None or finding.arm_mean is None or one.arm.get("search") != level:
                continue
            again = numbers(
                f"{one.id}.arm_mean", finding.arm_mean, "mean outcome of 'arm' over pairs"
            )
            spans += [Text(" Confirmed as "), Quote(arm_name(one.arm), STUDY)]
            spans += [Text(" in "), Reference(one.id, f"finding-{one.id}"), Text(": "), again]
            spans += [Text(".")]
        yield spans


def _row(state: StudyState, one: Proposed, names: list[str], rungs: int) -> TableRow:
    means: list[Cell] = []
    for rung in range(rungs):
        value = search_value(state, one.candidate, rung)
        means.append(() if value is None else (Exact(repr(value)),))
    cells: list[Cell] = [(Exact(str(one.candidate)),), (Exact(_shown(one, names)),)]
    target = f"candidate-{one.candidate}"
    return TableRow([*cells, (Exact(one.by),), *means, (Exact(one.refused),)], target)


def _shown(one: Proposed, names: list[str]) -> str:
    return ", ".join(f"{name}={json.dumps(one.values[name])}" for name in names)
