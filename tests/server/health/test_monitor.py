"""How findings come and go, what is good, and what a run is paused for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ajet_core.interfaces import StepRecord
from ajet_core.protocol import FailureConfig
from ajet_server.health import HealthMonitor

from .test_checks import HEALTHY


def monitor(*shares: float, **config: object) -> HealthMonitor:
    """A monitor of a run with these shares of answers cut off, step by step."""
    made = HealthMonitor(FailureConfig.model_validate(config))
    for step, share in enumerate(shares, start=1):
        made.record(step, {**HEALTHY, "calls_cut_off": 300 * share}, float(step))
    return made


def kinds(made: HealthMonitor) -> list[str]:
    return [finding.kind for finding in made.findings]


def test_a_finding_stays_until_half_of_its_limit() -> None:
    assert kinds(monitor(0.6)) == ["cut_off"]
    assert kinds(monitor(0.6, 0.3)) == ["cut_off"]
    assert kinds(monitor(0.6, 0.3, 0.24)) == []
    assert kinds(monitor(0.6, 0.24, 0.4)) == []


def test_it_is_told_once_and_its_words_are_those_of_the_newest_step() -> None:
    made = monitor(0.6)
    begun = made.record(2, {**HEALTHY, "calls_cut_off": 300 * 0.9}, 2.0)
    assert begun == []
    (found,) = made.findings
    assert found.sentence.startswith("90 % of the answers were cut off")
    assert (found.step, found.since) == (1, 1.0)


def test_it_is_since_the_first_suspect_step_and_what_is_good_is_from_before() -> None:
    made = monitor(0.0, 0.0, 0.3, 0.4, 0.6)
    (found,) = made.findings
    # The answers of step 3 were sampled by the weights after step 2.
    assert (found.step, found.good_step) == (3, 1)
    assert made.good_step == 1


def test_batches_without_signal_are_bad_from_the_first_of_them_on() -> None:
    made = HealthMonitor(FailureConfig())
    for step in range(1, 8):
        made.record(step, {**HEALTHY, "no_signal": float(step > 2)}, float(step))
    (found,) = made.findings
    assert (found.kind, found.step, found.good_step) == ("zero_signal", 3, 2)


def test_a_suspicion_keeps_what_is_good_before_anything_is_found() -> None:
    made = monitor(0.0, 0.0, 0.0, 0.3)
    assert (kinds(made), made.good_step) == ([], 2)
    assert monitor(0.0, 0.0, 0.3, 0.1).good_step is None


def test_a_limit_that_is_none_looks_for_nothing() -> None:
    made = monitor(0.9, max_cut_off=None)
    assert kinds(made) == []
    assert made.checks()["cut_off"] == "off"


def test_what_pauses_is_a_setting() -> None:
    assert not monitor(0.9).findings[0].pauses
    assert monitor(0.9, pause_on=["cut_off"]).findings[0].pauses


def test_every_check_says_how_it_stands() -> None:
    standing = monitor(0.9).checks()
    assert standing["cut_off"] == "found"
    assert standing["malformed"] == "ok"
    assert standing["reward_drop"] == "it needs 5 steps and has 1"
    fresh = HealthMonitor(FailureConfig()).checks()
    assert set(fresh.values()) == {"no step has been trained yet"}


def test_a_batch_is_judged_before_it_is_trained_and_is_no_step() -> None:
    made = monitor(0.0, pause_on=["cut_off"])
    (begun,) = made.judge(2, {**HEALTHY, "calls_cut_off": 300}, 2.0)
    assert (begun.kind, begun.pauses) == ("cut_off", True)
    # Trained after all, it is no news.
    assert made.record(2, {**HEALTHY, "calls_cut_off": 300}, 3.0) == []
    # Another one takes its place.
    assert made.judge(3, HEALTHY, 4.0) == []
    assert made.findings == []


@given(st.lists(st.floats(0, 1), max_size=30))
def test_a_restart_finds_what_was_found(shares: list[float]) -> None:
    made = monitor(*shares)
    past = [
        StepRecord(step, "b", {**HEALTHY, "calls_cut_off": 300 * share}, float(step))
        for step, share in enumerate(shares, start=1)
    ]
    again = HealthMonitor(FailureConfig(), past)
    assert (again.findings, again.checks(), again.good_step) == (
        made.findings,
        made.checks(),
        made.good_step,
    )
