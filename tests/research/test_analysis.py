"""From outcomes that are set by hand to findings, verdicts and decisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("scipy")

from ajet_research.analysis import (
    analyse,
    decision,
    final_verdicts,
    kept,
    outcomes,
    search_value,
)
from ajet_research.events import Finished, LookFinding
from ajet_research.search.space import candidate_arm
from ajet_research.state import StudyState, TrialState, fold
from tests.research.studies import study
from tests.research.test_leader import new_ledger
from tests.research.test_search import searching

A, B = 'method="a"', 'method="b"'
ONE_LOOK = {"inference__looks": [{"seeds": 8, "alpha": 0.05}], "inference__repeats": 0}
Score = Callable[[str, int], float | None]


def finished(trial: str, score: float | None, **changes: Any) -> Finished:
    """An outcome; None is a failure of the arm."""
    metrics = {"score": score, "loss": -score, "far_score": score} if score is not None else {}
    content: dict[str, Any] = {
        "trial": trial,
        "attempt": 1,
        "metrics": metrics,
        "failed": "" if score is not None else "it diverged",
        "limit": False,
        "fingerprint": trial,
        "store": {},
        "seconds": 1.0,
        **changes,
    }
    return Finished(**content)


def measured(score: Score, **changes: Any) -> StudyState:
    """A study whose trials all have ended."""
    state = fold(new_ledger(study(**{**ONE_LOOK, **changes})).rows)
    for id_, trial in state.trials.items():
        trial.outcome = finished(id_, score(trial.arm, trial.blueprint.seed))
        trial.status = "finished"
    return state


def trial_of(state: StudyState, arm: str, seed: int, *, repeat: bool = False) -> TrialState:
    (its,) = (
        one
        for one in state.trials.values()
        if (one.arm, one.blueprint.seed, bool(one.blueprint.repeat)) == (arm, seed, repeat)
    )
    return its


def lose(state: StudyState, arm: str, seed: int) -> None:
    """Let a trial have no outcome."""
    trial = trial_of(state, arm, seed)
    trial.outcome, trial.status = None, "lost"


def only(state: StudyState, look: int = 0) -> LookFinding:
    (finding,) = analyse(state, look).values()
    return finding


def one_better(arm: str, seed: int) -> float:
    return seed + (1.0 if arm == B else 0.0)


def test_a_finding_has_the_numbers_of_its_pairs() -> None:
    its = only(measured(one_better))
    assert (its.verdict, its.reason, its.missing) == ("better", "", [])
    assert its.seeds == list(range(1, 9))
    assert (its.arm_mean, its.against_mean, its.gain) == (5.5, 4.5, 1.0)
    assert (its.low, its.high, its.wins, its.alpha) == (1.0, 1.0, 1.0, 0.05)
    assert its.p == pytest.approx(2 / 2**8)


def test_less_of_a_metric_to_minimise_is_better() -> None:
    its = only(measured(one_better, outcome__metric="loss"))
    assert (its.verdict, its.gain, its.arm_mean) == ("better", 1.0, -5.5)


def test_an_effect_below_the_smallest_of_interest_is_equivalent() -> None:
    state = measured(lambda arm, seed: seed + (0.1 if arm == B else 0.0))
    assert only(state).verdict == "equivalent"


def test_a_look_has_its_own_seeds_and_its_own_alpha() -> None:
    looks = [{"seeds": 6, "alpha": 0.04}, {"seeds": 8, "alpha": 0.01}]
    state = measured(one_better, inference__looks=looks, inference__first_seed=5)
    first, second = only(state), only(state, 1)
    assert (first.seeds, first.alpha) == ([5, 6, 7, 8, 9, 10], 0.04)
    assert (second.seeds, second.alpha) == ([*range(5, 13)], 0.01)


def test_what_is_decided_is_not_analysed_again() -> None:
    state = measured(one_better)
    first = analyse(state, 0)
    assert list(first) == ["b-vs-a"]
    state.findings.append(first)
    assert analyse(state, 0) == {}
    state.findings[0] = {"b-vs-a": first["b-vs-a"].model_copy(update={"verdict": "undecided"})}
    assert list(analyse(state, 0)) == ["b-vs-a"]


def test_without_a_look_all_is_undecided_and_the_last_branch_applies() -> None:
    state = measured(one_better)
    assert (final_verdicts(state), decision(state)) == ({"b-vs-a": "undecided"}, 1)
    state.findings.append(analyse(state, 0))
    assert (final_verdicts(state), decision(state)) == ({"b-vs-a": "better"}, 0)


def test_an_arm_that_fails_has_the_worst_value_or_the_registered_one() -> None:
    def failing(arm: str, seed: int) -> float | None:
        return None if (arm, seed) == (B, 3) else one_better(arm, seed)

    state = measured(failing)
    assert outcomes(state, B, "score")[3] == state.metrics["score"].worst
    assert only(state).verdict == "undecided"
    registered = measured(failing, outcome__failed=4.0)
    assert outcomes(registered, B, "score")[3] == 4.0
    # In other metrics, it has their worst value.
    assert outcomes(registered, B, "loss")[3] == registered.metrics["loss"].worst
    assert only(registered).verdict == "better"


def test_repeated_trials_are_no_outcomes() -> None:
    state = measured(one_better, inference__repeats=2)
    repeats = [one for one in state.trials.values() if one.blueprint.repeat]
    assert len(repeats) == 2
    for trial in repeats:
        trial.outcome = finished("again", -100.0)
    assert only(state).gain == 1.0


def test_pairs_of_which_one_is_lost_are_missing() -> None:
    state = measured(one_better, inference__most_missing=0.25)
    lose(state, A, 2)
    lose(state, B, 7)
    its = only(state)
    assert (its.seeds, its.missing, its.verdict) == ([1, 3, 4, 5, 6, 8], [2, 7], "better")
    # The means are those of the pairs.
    assert (its.arm_mean, its.against_mean) == (5.5, 4.5)
    lose(state, B, 1)
    assert (only(state).verdict, only(state).reason) == (
        "invalid",
        "more pairs are missing than the study allows",
    )


def test_before_the_last_look_too_many_missing_pairs_leave_it_undecided() -> None:
    looks = [{"seeds": 6, "alpha": 0.04}, {"seeds": 8, "alpha": 0.01}]
    state = measured(one_better, inference__looks=looks, inference__most_missing=0.2)
    lose(state, A, 1)
    lose(state, A, 2)
    assert only(state).verdict == "undecided"
    assert only(state, 1).verdict == "invalid"


def test_a_comparison_without_pairs_is_invalid_and_has_no_numbers() -> None:
    state = measured(one_better)
    for seed in range(1, 9):
        lose(state, A if seed % 2 else B, seed)
    its = only(state)
    assert (its.verdict, its.reason) == ("invalid", "no pair of trials has outcomes")
    assert (its.seeds, its.missing, its.alpha) == ([], list(range(1, 9)), 0.05)
    assert {its.arm_mean, its.against_mean, its.gain, its.low, its.high, its.p, its.wins} == {None}


def test_trials_of_two_seeds_that_measured_the_same_are_invalid() -> None:
    state = measured(one_better)
    first, second = trial_of(state, B, 2), trial_of(state, B, 6)
    ids = [id_ for id_, one in state.trials.items() if one in (first, second)]
    assert first.outcome is not None
    assert second.outcome is not None
    second.outcome = second.outcome.model_copy(update={"fingerprint": first.outcome.fingerprint})
    its = only(state)
    assert its.verdict == "invalid"
    assert its.reason == (
        f"the seed has no effect: trials {ids[0]} and {ids[1]} of the arm {B} measured the same"
    )
    # Failures may be the same, and a repeated trial should be.
    for trial in (first, second):
        trial.outcome = finished("a", None, fingerprint="same")
    assert only(state).verdict != "invalid"


def test_the_other_arm_and_repeats_do_not_count_as_the_same() -> None:
    state = measured(one_better, inference__repeats=1)
    (repeat,) = (one for one in state.trials.values() if one.blueprint.repeat)
    its = trial_of(state, repeat.arm, repeat.blueprint.seed)
    assert its.outcome is not None
    repeat.outcome = its.outcome
    other = trial_of(state, B if repeat.arm == A else A, 5)
    assert other.outcome is not None
    other.outcome = other.outcome.model_copy(update={"fingerprint": its.outcome.fingerprint})
    assert only(state).verdict == "better"


GUARDED = {"outcome__guardrails": [{"metric": "loss", "margin": 0.5}]}


def set_loss(state: StudyState, worse: float) -> None:
    """Let the loss of b exceed that of a."""
    for trial in state.trials.values():
        assert trial.outcome is not None
        loss = trial.blueprint.seed + (worse if trial.arm == B else 0.0)
        metrics = {**trial.outcome.metrics, "loss": loss}
        trial.outcome = trial.outcome.model_copy(update={"metrics": metrics})


@pytest.mark.parametrize(
    ("worse", "gain", "holds", "verdict"),
    [(1.0, 1.0, False, "undecided"), (0.25, 1.0, True, "better"), (1.0, 0.0, False, "undecided")],
)
def test_an_arm_is_better_or_equivalent_only_if_its_guardrail_holds(
    worse: float, gain: float, holds: bool, verdict: str
) -> None:
    state = measured(lambda arm, seed: seed + (gain if arm == B else 0.0), **GUARDED)
    set_loss(state, worse)
    its = only(state)
    guarded = its.guardrails["loss"]
    assert (guarded.holds, guarded.gain, its.verdict) == (holds, -worse, verdict)
    assert its.reason == ("" if holds else "a guardrail is not shown to hold: loss")


def test_a_guardrail_does_not_save_an_arm_that_is_worse() -> None:
    state = measured(lambda arm, seed: seed - (1.0 if arm == B else 0.0), **GUARDED)
    set_loss(state, 1.0)
    assert (only(state).verdict, only(state).reason) == ("worse", "")


def test_an_unbounded_interval_has_no_ends() -> None:
    # Of four pairs, no interval of 95 % is bounded.
    state = measured(one_better, inference__most_missing=0.9)
    for seed in range(1, 5):
        lose(state, A, seed)
    its = only(state)
    assert (its.low, its.high, its.gain, its.verdict) == (None, None, 1.0, "undecided")


@pytest.mark.parametrize("metric", ["score", "loss"])
def test_the_best_candidates_of_a_rung_are_kept(metric: str) -> None:
    its = searching(outcome__metric=metric)
    assert its.search is not None
    rungs = [keeping(rung, 2) for rung in its.search.rungs]
    its = its.model_copy(update={"search": its.search.model_copy(update={"rungs": rungs})})
    state = StudyState(study=its, entered=[0, 1, 2, 3, 4])
    state.metrics = fold(new_ledger(searching()).rows).metrics
    some = trial_of(measured(one_better), A, 1).blueprint
    # Means of two seeds: candidates 1 and 3 score most, 4 has no outcome.
    for number, scores in enumerate([(0.0, 0.0), (3.0, 1.0), (0.0, 1.0), (2.0, 3.0)]):
        for seed, score in enumerate(scores):
            id_ = f"{number}-{seed}"
            arm = candidate_arm(number, 0)
            trial = TrialState(at_seed(some, seed), arm, outcome=finished(id_, score))
            state.trials[id_] = trial
    assert search_value(state, 1, 0) == (2.0 if metric == "score" else -2.0)
    assert search_value(state, 4, 0) is None
    # The loss is the negative of the score.
    assert kept(state) == [3, 1]


def at_seed(blueprint: Any, seed: int) -> Any:
    return blueprint.model_copy(update={"seed": seed})


def keeping(rung: Any, keep: int) -> Any:
    return rung.model_copy(update={"keep": keep})


def test_equal_candidates_are_kept_in_their_order() -> None:
    its = searching()
    assert its.search is not None
    state = StudyState(study=its, entered=[2, 0, 1])
    state.metrics = fold(new_ledger(its).rows).metrics
    some = trial_of(measured(one_better), A, 1).blueprint
    for number in state.entered:
        trial = TrialState(some, candidate_arm(number, 0), outcome=finished(f"{number}", 1.0))
        state.trials[f"{number}"] = trial
    assert kept(state) == [0, 1, 2][: its.search.rungs[0].keep]
