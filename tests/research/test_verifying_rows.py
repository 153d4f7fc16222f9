"""What ``ajet research verify`` says of single rows and findings that contradict the study."""

from __future__ import annotations

import hashlib
import math
import os
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ajet_research.events import (
    Answered,
    AnyEvent,
    Asked,
    AttemptFailed,
    Decided,
    Exhausted,
    Finished,
    Interpreted,
    Looked,
    Lost,
    Reported,
    ResearcherAsked,
    Reserved,
)
from ajet_research.ledger import LedgerRow
from ajet_research.state import StudyState
from ajet_research.suites.planted import lead_in_memory
from ajet_research.verifying import (
    _out_of_order,
    _wrong_finding,
    _wrong_interpretation,
    _wrong_statistics,
    _wrong_transcripts,
)
from tests.research.studies import study
from tests.research.test_actions import begun

FIRST, *_, LAST = begun().trials
NOW = datetime(2026, 1, 1, tzinfo=UTC)
ENDED: dict[str, Any] = {"trial": FIRST, "attempt": 1, "seconds": 1.0}
ACT: dict[str, Any] = {"request": "1", "by": "me", "at": NOW, "why": ""}


def row(event: AnyEvent) -> LedgerRow:
    return LedgerRow(2, "2026-01-01T00:00:00+00:00", 0.0, event, "")


@pytest.mark.parametrize(
    "event",
    [
        Reserved(trial=LAST, attempt=1, seconds=30.0),
        Reserved(trial=FIRST, attempt=1, seconds=29.0),
        Reserved(trial=FIRST, attempt=1, seconds=30.0, mebibytes=2.0),
        Reserved(trial="0" * 12, attempt=1, seconds=30.0),
        AttemptFailed(cause="", **ENDED),
        Finished(metrics={}, failed="", limit=False, fingerprint="", store={}, **ENDED),
        Lost(trial=FIRST),
        Exhausted(resource="trials", used=20, limit=20),
        Exhausted(resource="wall_hours", used=1.0, limit=24.0),
        Exhausted(resource="wall_hours", used=2.0, limit=1.0),
        Exhausted(resource="disk_mib", used=2000.0, limit=500.0),
        Asked(question="begin", deadline=NOW),
        Answered(
            request="1", by="me", at=NOW, why="", question="begin", answer="yes", default=False
        ),
        Looked(look=0, findings={}),
        Decided(branch=1, verdicts={"b-vs-a": "undecided"}),
        Reported(files={}),
    ],
    ids=range(16),
)
def test_a_row_that_nothing_calls_for_is_a_problem(event: AnyEvent) -> None:
    state = begun()
    (problem,) = _out_of_order(row(event), state)
    assert problem == f"Row 2 ({event.kind}) is not what the rows before it call for."
    called_for = Reserved(trial=FIRST, attempt=1, seconds=30.0)
    assert list(_out_of_order(row(called_for), state)) == []


@cache
def led(**changes: Any) -> StudyState:
    """A study with its report, in memory."""
    guardrails = [{"metric": "far_score", "margin": 5.0}]
    return lead_in_memory(study(outcome__guardrails=guardrails, **changes))


def problems(**changes: Any) -> list[str]:
    """What is wrong with the finding of the first look after changes."""
    state = led()
    (one,) = state.registered.compare
    finding = state.findings[0]["b-vs-a"].model_copy(update=changes)
    return list(_wrong_finding(state, one, finding, 0))


OTHER = {
    "seeds": ([1, 2, 3], "other pairs than those with outcomes"),
    "missing": ([7], "other missing pairs than those without outcomes"),
    "alpha": (0.03, "another alpha than the registered one"),
    "arm_mean": (0.125, "the mean of the arm is "),
    "against_mean": (None, "the mean of the other is "),
    "gain": (0.125, "the difference is "),
    "p": (0.5, "the p value is "),
    "wins": (0.25, "the share of wins is "),
    "low": (-50.0, "the lower end of an interval does not invert the test"),
    "high": (50.0, "the upper end of an interval does not invert the test"),
    "verdict": ("worse", "the verdict is "),
    "guardrails": ({}, "the guardrail far_score is missing"),
}


@pytest.mark.parametrize("name", OTHER)
def test_a_finding_that_does_not_follow_is_a_problem(name: str) -> None:
    assert problems() == []
    value, problem = OTHER[name]
    assert getattr(led().findings[0]["b-vs-a"], name) != value
    assert any(one.startswith(problem) for one in problems(**{name: value}))


@pytest.mark.parametrize("change", [{"gain": 0.125}, {"holds": False}, {"low": -50.0}], ids=str)
def test_a_guardrail_that_does_not_follow_is_a_problem(change: dict[str, Any]) -> None:
    its = led().findings[0]["b-vs-a"].guardrails["far_score"]
    assert its.holds
    assert math.isfinite(its.low or math.inf)
    assert problems(guardrails={"far_score": its.model_copy(update=change)})
    both = problems(guardrails={"far_score": its, "score": its})
    assert both == ["a guardrail that is not registered"]


def test_a_look_has_the_comparisons_that_are_open() -> None:
    state = begun()
    state.findings.append({})
    problem = "Row 2: the look has other comparisons than those that are open."
    assert list(_wrong_statistics(row(Looked(look=0, findings={})), state)) == [problem]


@pytest.mark.parametrize(
    ("branch", "verdict"), [(0, "undecided"), (1, "better"), (0, "worse")], ids=range(3)
)
def test_a_decision_that_does_not_follow_is_a_problem(branch: int, verdict: Any) -> None:
    decided = Decided(branch=branch, verdicts={"b-vs-a": verdict})
    problem = "Row 2: the decision does not follow from the verdicts."
    assert list(_wrong_statistics(row(decided), begun())) == [problem]
    right = Decided(branch=1, verdicts={"b-vs-a": "undecided"})
    assert list(_wrong_statistics(row(right), begun())) == []


def test_requests_and_words_of_researchers_are_checked() -> None:
    state = led(budget__researcher_tokens=10)

    def said(event: AnyEvent) -> list[str]:
        return list(_wrong_interpretation(row(event), state))

    asked = ResearcherAsked(
        number=1, researcher="r", purpose="interpretation", request="", tokens=10, money=0.0
    )
    assert said(asked) == []
    (problem,) = said(asked.model_copy(update={"tokens": 11}))
    assert "the budget of researchers did not allow this request" in problem
    (problem,) = said(asked.model_copy(update={"purpose": "proposal"}))
    assert "a researcher was asked before the report" in problem
    words = Interpreted(researcher="r", prose="It is better by 2.", problem="")
    assert any("the prose of r: " in one for one in said(words))
    nothing = Interpreted(researcher="r", prose="", problem="")
    assert said(nothing) == ["Row 2: an interpretation has either prose or a problem."]


def test_a_transcript_has_the_registered_hash(tmp_path: Path) -> None:
    asked = ResearcherAsked(
        number=1,
        researcher="r",
        purpose="interpretation",
        request=hashlib.sha256(b"{}").hexdigest(),
        tokens=10,
        money=0.0,
    )
    (problem,) = _wrong_transcripts(tmp_path, [row(asked)])
    assert problem.startswith("Row 2: 001-request.json is not what the researcher was asked")
    # Nobody may write to a pipe.
    os.mkfifo(tmp_path / "001-request.json")
    assert list(_wrong_transcripts(tmp_path, [row(asked)])) == [problem]
    (tmp_path / "001-request.json").unlink()
    (tmp_path / "001-request.json").write_bytes(b"{}")
    assert list(_wrong_transcripts(tmp_path, [row(asked)])) == []
