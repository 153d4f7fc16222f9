"""Suite ``links``: whether each numeral of a report links to what it comes from.

The studies are of all kinds whose reports differ: with failures, guardrails, repeated trials, a
search, an end of the budget, and words of a researcher.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ajet_core.files import write_whole
from ajet_research.leader import REPORT, run_study
from ajet_research.report import unlinked_numerals
from ajet_research.researchers import submit_prose
from ajet_research.runners import FileRunner
from ajet_research.state import StudyState
from ajet_research.study import Guardrail, Study, canonical
from ajet_research.suites.planted import planted_study
from ajet_research.suites.researching import GOOD_PROSE
from ajet_research.suites.searching import search_study


def run_links(*, seed: int, size: int | None = None) -> dict[str, Any]:
    """Run studies to their reports, and count numerals without a link, and trials left out.

    :param seed: of the generated worlds.
    :param size: how many studies; all by default.
    """
    began = time.monotonic()
    numerals, unlinked, missing = 0, [], []
    studies = list(_studies(seed))[:size]
    with tempfile.TemporaryDirectory() as folder:
        for index, (name, study) in enumerate(studies):
            directory = Path(folder) / str(index) / "study"
            source = directory.parent / "study.json"
            source.parent.mkdir()
            write_whole(source, canonical(study.model_dump(mode="json", by_alias=True)).encode())
            state = run_study(source, directory, runner=FileRunner)
            if name == "words":
                unlinked += [f"{name}: {one}" for one in _worded(directory)]
            for page in ("report.html", "record.html"):
                text = (directory / REPORT / page).read_text(encoding="utf-8")
                bare, count = unlinked_numerals(text)
                numerals += count
                unlinked += [f"{name}, {page}: {numeral}" for numeral in bare]
            missing += [f"{name}: {trial}" for trial in _left_out(directory, state)]
    return {
        "suite": "links",
        "studies": len(studies),
        "numerals": numerals,
        "linked": numerals - len(unlinked),
        "unlinked": unlinked,
        "unreported_trials": missing,
        "seconds": round(time.monotonic() - began, 1),
        "passed": numerals > 0 and not unlinked and not missing,
    }


def _studies(seed: int) -> Iterator[tuple[str, Study]]:
    """Yield studies with the names of what their reports have."""
    looks = ((6, 0.04), (8, 0.01))
    for world in ("clear", "null", "trivial", "heavy", "seedless", "unrepeatable", f"null:{seed}"):
        yield world, planted_study(world, looks=looks, repeats=1)
    yield "failures", planted_study("survivors", looks=looks, repeats=2)
    yield "many arms", planted_study("plateau", arms=3, looks=((10, 0.02), (16, 0.03)))
    guarded = planted_study("slice", looks=looks)
    margins = [Guardrail(metric="far_score", margin=0.5)]
    outcome = guarded.outcome.model_copy(update={"guardrails": margins})
    yield "guardrail", guarded.model_copy(update={"outcome": outcome})
    yield "search", search_study(f"hill:{seed}", "random", seed=seed)
    yield "words", planted_study("null", looks=looks)


def _worded(directory: Path) -> list[str]:
    return submit_prose(directory, GOOD_PROSE, name="script").problems


def _left_out(directory: Path, state: StudyState) -> list[str]:
    """Return the trials of the ledger that the report does not have."""
    page = (directory / REPORT / "report.html").read_text(encoding="utf-8")
    data = json.loads((directory / REPORT / "report.json").read_text(encoding="utf-8"))
    known = json.dumps(data)
    return [id_ for id_ in state.trials if f'id="trial-{id_}"' not in page or id_ not in known]
