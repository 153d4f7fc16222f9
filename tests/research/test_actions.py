"""What a study needs next, in states that are written down: each expectation is one by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ajet_research.actions import (
    Ask,
    Await,
    GiveUp,
    Hold,
    Proceed,
    Reserve,
    Stop,
    actions,
    needed_now,
)
from ajet_research.events import LookFinding
from ajet_research.leader import registered_event
from ajet_research.ledger import LedgerRow
from ajet_research.registration import register
from ajet_research.state import StudyState
from tests.research.studies import study

SECONDS = 30.0
THREE_ARMS = {
    "factors__method__levels": ["a", "b", "c"],
    "base": {"arena": "synthetic", "set": {"world": "plateau", "steps": 2}},
    "inference__looks": [{"seeds": 7, "alpha": 0.04}, {"seeds": 9, "alpha": 0.01}],
    "compare": [
        {"id": "b-vs-a", "arm": {"method": "b"}, "against": {"method": "a"}},
        {"id": "c-vs-b", "arm": {"method": "c"}, "against": {"method": "b"}},
    ],
    "decide": [{"otherwise": True, "conclude": "See the verdicts."}],
    "budget__trials": 40,
}


def begun(**changes: Any) -> StudyState:
    """A study that is registered."""
    state = StudyState()
    event = registered_event(register(study(**changes), Path()))
    state.apply(LedgerRow(1, "2026-01-01T00:00:00+00:00", 0.0, event, ""))
    return state


def needed(state: StudyState) -> set[tuple[str, int, int]]:
    """The trials that the next look needs: method, seed and repetition."""
    its = [state.trials[id_].blueprint for id_ in needed_now(state)]
    assert len(its) == len({one.id for one in its})
    return {(str(one.settings["method"]), one.seed, one.repeat) for one in its}


def blocks(methods: str, *seeds: int) -> set[tuple[str, int, int]]:
    return {(method, seed, 0) for method in methods for seed in seeds}


def found(state: StudyState, **verdicts: str) -> None:
    """Take a look."""
    its: dict[str, Any]
    look = {}
    for id_, verdict in verdicts.items():
        its = {"verdict": verdict}
        look[id_.replace("_", "-")] = LookFinding.model_construct(None, **its)
    state.findings.append(look)


def finish(state: StudyState, *ids: str) -> None:
    for id_ in ids:
        state.trials[id_].status = "finished"
        state.trials[id_].attempts = 1


def test_a_look_needs_its_seeds_of_all_arms_and_the_repetitions() -> None:
    state = begun()
    assert needed(state) == {*blocks("ab", 1, 2, 3, 4, 5, 6), ("a", 1, 1)}
    assert actions(state) == [Reserve(id_) for id_ in needed_now(state)]


def test_the_next_look_needs_what_is_left_of_open_comparisons() -> None:
    state = begun()
    finish(state, *needed_now(state))
    assert needed(state) == set()
    assert actions(state) == [Proceed("look")]
    found(state, b_vs_a="undecided")
    assert needed(state) == blocks("ab", 7, 8)
    finish(state, *needed_now(state))
    found(state, b_vs_a="undecided")
    assert needed(state) == set()
    assert actions(state) == [Proceed("decision")]


def test_a_closed_comparison_needs_no_trials_of_its_own() -> None:
    state = begun(**THREE_ARMS)
    assert needed(state) == {*blocks("abc", *range(1, 8)), ("a", 1, 1)}
    found(state, b_vs_a="worse", c_vs_b="undecided")
    assert needed(state) == {*blocks("bc", *range(1, 10)), ("a", 1, 1)}
    for verdict in ("better", "worse", "equivalent", "invalid"):
        state.findings.clear()
        found(state, b_vs_a=verdict, c_vs_b=verdict)
        assert needed(state) == set()
        assert actions(state) == [Proceed("decision")]


def test_a_trial_counts_once_however_often_it_is_attempted() -> None:
    state = begun(budget__trials=17)
    state.limits = state.registered.budget.model_copy(update={"trials": 2})
    first, second, third, *_ = needed_now(state)
    assert actions(state) == [Reserve(first), Reserve(second)]
    state.trials[first].attempts = 1
    assert actions(state) == [Reserve(first), Reserve(second)]
    finish(state, first)
    state.trials[second].status, state.trials[second].attempts = "reserved", 1
    # Nothing is left for a third one, but the second may still end.
    assert actions(state) == [Await(second)]
    finish(state, second)
    assert actions(state) == [Stop("trials", 2, 2)]
    assert third in needed_now(state)


def test_time_counts_whether_it_is_spent_or_set_aside() -> None:
    state = begun()
    limit = state.registered.budget.model_copy(update={"compute_hours": 3 * SECONDS / 3600})
    state.limits = limit
    first, second, third, fourth, *_ = needed_now(state)
    assert actions(state) == [Reserve(first), Reserve(second), Reserve(third)]
    state.trials[first].status, state.trials[first].attempts = "reserved", 1
    state.reserved = SECONDS
    assert actions(state) == [Await(first), Reserve(second), Reserve(third)]
    finish(state, first)
    state.reserved, state.settled = 0.0, SECONDS
    assert actions(state) == [Reserve(second), Reserve(third)]
    finish(state, second, third)
    state.settled = 3 * SECONDS
    assert fourth in needed_now(state)
    assert actions(state) == [Stop("compute_hours", 3 * SECONDS / 3600, limit.compute_hours)]


def test_a_trial_without_attempts_left_is_given_up_and_nothing_else_starts() -> None:
    state = begun()
    first, second, *_ = needed_now(state)
    state.trials[first].attempts = state.budget.attempts
    assert actions(state) == [GiveUp(first)]
    state.trials[second].status, state.trials[second].attempts = "reserved", 1
    assert actions(state) == [Await(second), GiveUp(first)]
    state.trials[first].attempts -= 1
    assert Reserve(first) in actions(state)


def test_whatever_runs_is_waited_for_before_a_look_or_a_decision() -> None:
    state = begun()
    *others, last = needed_now(state)
    finish(state, *others)
    state.trials[last].status, state.trials[last].attempts = "reserved", 1
    assert actions(state) == [Await(last)]
    state.ended = state.exhausted = object()  # type: ignore[assignment]
    assert actions(state) == [Await(last)]
    finish(state, last)
    assert actions(state) == [Proceed("decision")]
    state.decided = object()  # type: ignore[assignment]
    assert actions(state) == [Proceed("report")]
    state.reported = object()  # type: ignore[assignment]
    assert actions(state) == []


def test_a_used_up_budget_allows_a_look_whose_trials_have_ended_and_no_other() -> None:
    state = begun()
    *others, last = needed_now(state)
    finish(state, *others)
    state.exhausted = object()  # type: ignore[assignment]
    assert actions(state) == [Proceed("decision")]
    state.trials[last].status, state.trials[last].attempts = "reserved", 1
    assert actions(state) == [Await(last)]
    finish(state, last)
    assert actions(state) == [Proceed("look")]
    found(state, b_vs_a="undecided")
    assert needed_now(state) != []
    assert actions(state) == [Proceed("decision")]


def test_a_person_who_ends_a_study_ends_it_before_a_look_whose_trials_have_ended() -> None:
    state = begun()
    finish(state, *needed_now(state))
    assert actions(state) == [Proceed("look")]
    state.ended = object()  # type: ignore[assignment]
    assert actions(state) == [Proceed("decision")]


def test_a_used_up_budget_asks_nothing() -> None:
    question = {"id": "q", "before_look": 1, "question": "?", "default": "yes", "deadline_hours": 1}
    state = begun(ask=[question])
    finish(state, *needed_now(state))
    assert actions(state) == [Ask("q")]
    state.exhausted = object()  # type: ignore[assignment]
    assert actions(state) == [Proceed("decision")]


def test_a_pause_starts_nothing_and_lets_trials_end() -> None:
    state = begun()
    first, *_ = needed_now(state)
    state.trials[first].status, state.trials[first].attempts = "reserved", 1
    state.paused = object()  # type: ignore[assignment]
    assert actions(state) == [Await(first), Hold("")]


def test_a_question_waits_for_what_runs() -> None:
    asked = {
        "id": "begin",
        "before_look": 1,
        "question": "May it begin?",
        "default": "no",
        "deadline_hours": 1,
    }
    state = begun(ask=[asked])
    assert actions(state) == [Ask("begin")]
    first, *_ = needed_now(state)
    state.trials[first].status, state.trials[first].attempts = "reserved", 1
    assert actions(state) == [Await(first)]
