"""Verification: what was forged is caught, and what was not is left in peace."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet_research.events import LookFinding
from ajet_research.inference import estimate
from ajet_research.ledger import LEDGER, read_ledger
from ajet_research.report.document import Document, Exact, Quote, Reference, TableRow, Text
from ajet_research.report.links import unlinked_numerals
from ajet_research.report.prose import refusals
from ajet_research.suites.mutations import FORGERIES, _signed, finished_study
from ajet_research.verifying import _wrong_estimate, verify_study
from ajet_research.worker import AttemptResult, result_path
from tests.support.tiers import examples


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_study(tmp_path_factory.mktemp("study"), world="medium")


@pytest.mark.slow
@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_caught(finished: Path, tmp_path: Path, name: str) -> None:
    forged = tmp_path / "forged"
    shutil.copytree(finished, forged)
    FORGERIES[name](forged, random.Random(7))
    assert verify_study(forged).problems


@pytest.mark.slow
@pytest.mark.parametrize("world", ["survivors", "seedless", "slice", "heavy", "unrepeatable"])
def test_what_was_not_forged_verifies(tmp_path: Path, world: str) -> None:
    result = verify_study(finished_study(tmp_path, world=world))
    assert result.problems == []
    assert result.finished
    assert result.numerals > 200


def test_a_raw_store_of_another_form_is_a_problem_and_no_traceback(
    finished: Path, tmp_path: Path
) -> None:
    forged = tmp_path / "forged"
    shutil.copytree(finished, forged)
    raw = next(forged.glob("trials/*/store/raw.jsonl"))
    raw.write_text(raw.read_text().replace("task-3", "task-33"))
    problems = verify_study(forged).problems
    assert problems[0].endswith("its raw store has changed.")
    assert "cannot be read: KeyError: 'task-3'" in problems[1]


# Decimals, whose sums are inexact, so that rounding could decide between equal statistics.
DECIMALS = st.lists(st.integers(-6, 6).map(lambda n: n / 10), min_size=1, max_size=8)


def finding_of(values: list[float], alpha: float, **changes: object) -> LookFinding:
    its = estimate(values, alpha)
    content: dict[str, object] = {
        "verdict": "undecided",
        "reason": "",
        "seeds": [],
        "missing": [],
        "arm_mean": None,
        "against_mean": None,
        "gain": its.gain,
        "low": its.low if abs(its.low) < 1e300 else None,
        "high": its.high if abs(its.high) < 1e300 else None,
        "p": its.p,
        "alpha": alpha,
        "wins": its.wins,
        "guardrails": {},
    }
    return LookFinding.model_validate({**content, **changes})


@given(DECIMALS, st.sampled_from([1e-9, 1.0, 1e6]), st.sampled_from([0.0, 0.1, 1e4]), st.booleans())
@settings(deadline=None, max_examples=examples(60))
def test_ties_and_rounding_are_no_false_alarm(
    values: list[float], scale: float, offset: float, equal: bool
) -> None:
    values = values[:1] * len(values) if equal else values
    # As differences of outcomes, in which rounding is larger than in the differences.
    values = [scale * ((value + offset) - offset) for value in values]
    for alpha in (0.05, 0.25):
        assert list(_wrong_estimate(values, finding_of(values, alpha), alpha)) == []


@given(st.lists(st.integers(-40, 40), min_size=5, max_size=8, unique=True), st.data())
@settings(deadline=None, max_examples=examples(30))
def test_an_estimate_that_is_a_little_off_is_caught(sample: list[int], data: st.DataObject) -> None:
    values = [value / 7 for value in sample]
    right = finding_of(values, 0.125)
    name = data.draw(st.sampled_from(["gain", "low", "high", "p", "wins"]))
    wrong = getattr(right, name) + data.draw(st.sampled_from([-1, 1])) * 1e-5
    assert list(_wrong_estimate(values, finding_of(values, 0.125, **{name: wrong}), 0.125))


def test_a_trial_that_ended_cannot_be_declared_out_of_time(finished: Path, tmp_path: Path) -> None:
    forged = tmp_path / "forged"
    shutil.copytree(finished, forged)
    trials = {
        row.event.trial for row in read_ledger(forged / LEDGER) if hasattr(row.event, "limit")
    }
    over = min(trials)

    def change(bodies: list[dict[str, Any]], _rng: random.Random) -> None:
        (body,) = (one for one in bodies if one["kind"] == "finished" and one["trial"] == over)
        gone = {"metrics": {}, "failed": "time limit", "limit": True, "fingerprint": ""}
        body.update(gone, store={}, seconds=61.0)

    result = AttemptResult(attempt=1, status="limit", cause="", seconds=61.0)
    result_path(forged / "trials" / over, 1).write_text(result.model_dump_json())
    _signed(change)(forged, random.Random(1))
    assert any("before it reached a limit" in one for one in verify_study(forged).problems)


def metric_is_other(bodies: list[dict[str, Any]], _rng: random.Random) -> None:
    next(iter(bodies[0]["metrics"].values()))["worst"] -= 1.0


def trial_is_of_another_arm(bodies: list[dict[str, Any]], _rng: random.Random) -> None:
    arms = bodies[0]["arms"]
    trial, arm = next(iter(arms.items()))
    arms[trial] = next(other for other in arms.values() if other != arm)


def trials_have_another_order(bodies: list[dict[str, Any]], _rng: random.Random) -> None:
    bodies[0]["blueprints"].append(bodies[0]["blueprints"].pop(-2))


def outcome_is_a_failed_attempt(bodies: list[dict[str, Any]], _rng: random.Random) -> None:
    place = next(i for i, one in enumerate(bodies) if one["kind"] == "finished")
    its = {name: bodies[place][name] for name in ("trial", "attempt", "seconds")}
    bodies[place] = {"kind": "attempt_failed", "cause": "the machine", **its}


def outcome_is_beyond_the_time(bodies: list[dict[str, Any]], _rng: random.Random) -> None:
    body = next(one for one in bodies if one["kind"] == "finished")
    body.update(limit=True, seconds=61.0)


def report_is_other(bodies: list[dict[str, Any]], _rng: random.Random) -> None:
    next(one for one in bodies if one["kind"] == "reported")["files"] = {}


# Each is refused by a check of its own; other checks notice some of them as well.
SAID = {
    metric_is_other: "The registered metrics are not those of the evaluator.",
    trial_is_of_another_arm: "The registered trials do not belong to the arms of the study.",
    trials_have_another_order: "The registered trials are not those of the study with this version",
    outcome_is_a_failed_attempt: " has a result.",
    outcome_is_beyond_the_time: "it has an outcome, though it reached a limit",
    report_is_other: "The ledger names another report than the one that follows from it.",
}


@pytest.mark.parametrize("change", SAID, ids=lambda change: change.__name__)
def test_a_forgery_is_named(
    finished: Path, tmp_path: Path, change: Callable[[list[dict[str, Any]], random.Random], None]
) -> None:
    forged = tmp_path / "forged"
    shutil.copytree(finished, forged)
    if change is outcome_is_beyond_the_time:
        event = next(r.event for r in read_ledger(forged / LEDGER) if r.event.kind == "finished")
        over = AttemptResult(attempt=1, status="limit", cause="", seconds=61.0)
        result_path(forged / "trials" / event.trial, 1).write_text(over.model_dump_json())
    _signed(change, report=change is not report_is_other)(forged, random.Random(1))
    problems = verify_study(forged).problems
    assert any(SAID[change] in one for one in problems), problems


ODD = [None, "", "x", -1, 0, 99, 1e300, True, [], ["x"], {}, [1], {"a": 1}, {"a": "b"}]
HARMLESS = {"host", "pid", "versions", "warnings", "directory", "earlier"}


def replaced(kind: str, name: str, value: object) -> Callable[[Path, random.Random], None]:
    """Replace a value in the first row of a kind, and sign the ledger again."""

    def change(bodies: list[dict[str, Any]], _rng: random.Random) -> None:
        body = next(one for one in bodies if one["kind"] == kind)
        if body.get(name, {}) == value:
            raise ValueError(value)
        body[name] = value

    return _signed(change, report=kind != "reported")


@pytest.mark.slow
def test_no_forged_value_passes_or_makes_the_check_crash(finished: Path, tmp_path: Path) -> None:
    rows = {row.event.kind: row.event for row in read_ledger(finished / LEDGER)}
    fields = [(kind, name) for kind, its in rows.items() for name in type(its).model_fields]
    forged = tmp_path / "forged"
    shutil.copytree(finished, forged)
    tried = set()
    for kind, name in fields:
        for value in ODD if name != "kind" else ():
            if getattr(rows[kind], name) == value:
                continue
            shutil.copy(finished / LEDGER, forged / LEDGER)
            try:
                replaced(kind, name, value)(forged, random.Random(1))
            except ValueError:
                # No event has such a value, so that reading the ledger refuses it.
                continue
            problems = verify_study(forged).problems
            assert problems or name in HARMLESS, (kind, name, value)
            assert not any("cannot be checked" in one for one in problems), problems
            tried.add((kind, name))
            break
    assert {kind for kind, _ in tried} == rows.keys()
    assert len(tried) >= 25


def test_verification_changes_nothing(finished: Path) -> None:
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    assert verify_study(finished).problems == []
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before


def test_a_copy_elsewhere_verifies(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "elsewhere")
    assert verify_study(tmp_path / "elsewhere").problems == []


def test_a_directory_without_a_study_does_not_verify(tmp_path: Path) -> None:
    assert verify_study(tmp_path).problems == [f"There is no study in {tmp_path}."]


def test_text_of_a_report_cannot_have_a_numeral() -> None:
    with pytest.raises(ValueError, match="a bare numeral in the text"):
        Text("better by 3")


def test_a_row_without_an_id_cannot_have_a_numeral() -> None:
    with pytest.raises(ValueError, match="without an id"):
        TableRow([(Exact("3"),)])


def test_numerals_without_a_target_are_counted() -> None:
    document = Document("Report")
    document.paragraph(Reference("1", "here"), Text(" and "), Reference("2", "nowhere"))
    document.table(["value"], [TableRow([(Exact("1"),)], "here")])
    page = document.html().replace("<h1>Report", "<h1>Report 4")
    assert unlinked_numerals(page) == (["4", "2"], 4)


def test_quoted_text_cannot_break_out_of_its_page() -> None:
    document = Document("Report")
    document.paragraph(Quote("<script>alert(1)</script> [x](javascript:2) | `3`", "study"))
    assert "<script>" not in document.html()
    assert "<script>" not in document.markdown().replace("\\<", "")
    assert "[x](" not in document.markdown()


@pytest.mark.parametrize(
    ("text", "verdicts", "refused"),
    [
        ("Use b: it is better.", [["better"]], False),
        ("Use the one that is better.", [["better", "worse"]], False),
        ("Use b: it is better.", [["better", "undecided"]], True),
        ("Use b: it is better.", [], True),
        ("Both are equivalent.", [["equivalent"]], False),
        ("Both are equivalent.", [["better"]], True),
        ("c is better, and b is equivalent to a.", [["better"], ["equivalent"]], False),
        ("Nothing was shown.", [], False),
        ("It is half as slow.", [["better"]], True),
        ("b is significantly better.", [["better"]], True),
    ],
)
def test_words_need_the_verdict_that_carries_them(
    text: str, verdicts: list[list[str]], refused: bool
) -> None:
    assert bool(refusals(text, verdicts)) is refused  # type: ignore[arg-type]


@pytest.mark.parametrize("number", ["1e-07", "2.5e+20", "0.002", "1,024"])
def test_a_numeral_in_quoted_text_is_one_link(number: str) -> None:
    document = Document("Title")
    document.paragraph(Quote(f"rate={number} is a level", "study"))
    assert f"rate=[{number}](#study) is" in document.markdown()
    assert f'rate=<a href="#study">{number}</a> is' in document.html()
