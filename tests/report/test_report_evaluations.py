"""Evaluations with intervals."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from ajet_cli.report.evaluations import logged, measured
from ajet_core.protocol import EvaluationConfig
from ajet_loggers.tracking import evaluation_metrics
from ajet_server.store.evaluation_counts import EvaluationCount
from ajet_sources.evaluating import interval


def count(
    task: str, ended: int, passed: int, *, step: int = 4, aborted: int = 0
) -> EvaluationCount:
    """Episodes of one task, each with reward 1 or 0."""
    return EvaluationCount("c", "held-out", step, task, ended, passed, 0, float(passed), aborted)


def test_a_task_counts_once_however_many_episodes_it_has() -> None:
    config = EvaluationConfig(pass_at=[1, 2])
    counts = [count("a", 4, 4), count("b", 4, 0), count("c", 1, 1), count("d", 0, 0, aborted=2)]
    (one,) = measured(counts, config)
    its = one.evaluation
    assert (its.tasks, its.episodes, its.aborted) == (3, 9, 2)
    assert its.pass_at == {1: pytest.approx(2 / 3), 2: 0.5}
    assert one.reward_mean == pytest.approx(2 / 3)
    # Standard error between three tasks with means 1, 0 and 1.
    half = 1.959964 * (1 / 3 / 3) ** 0.5
    assert one.reward_ends == pytest.approx((2 / 3 - half, 2 / 3 + half), rel=1e-5)
    # Two tasks, one of which passes: Wilson.
    assert one.pass_ends[2] == pytest.approx((0.0945, 0.9055), abs=1e-3)


def test_pass_at_1_has_the_interval_of_trackers() -> None:
    (one,) = measured([count("a", 2, 1), count("b", 2, 2)], EvaluationConfig())
    values = evaluation_metrics(one.evaluation)
    low, high = (values[f"evaluation/c/held-out/pass_at_1_{end}"] for end in ("low", "high"))
    assert one.pass_ends[1] == (low, high)
    assert low < 0.75 < high


def test_steps_are_in_order_and_one_task_has_no_interval_of_its_reward() -> None:
    found = measured([count("a", 1, 1, step=9), count("a", 1, 0, step=1)], EvaluationConfig())
    assert [one.evaluation.step for one in found] == [1, 9]
    assert found[0].reward_ends is None


def test_large_rewards_have_finite_intervals() -> None:
    counts = [replace(count(f"t{i}", 1, 1), reward_sum=i * 1e200) for i in range(3)]
    (one,) = measured(counts, EvaluationConfig())
    assert one.reward_mean == pytest.approx(1e200)
    half = 1.959964e200 / 3**0.5
    assert one.reward_ends == pytest.approx((1e200 - half, 1e200 + half), rel=1e-5)
    assert interval([1.7e308, -1.7e308]) == (-sys.float_info.max, sys.float_info.max)


def test_intervals_stay_in_0_to_1() -> None:
    counts = [count(f"t{i}", 3, 2 if i else 1) for i in range(4)]
    (one,) = measured(counts, EvaluationConfig(pass_at=[1, 2]))
    for ends in one.pass_ends.values():
        assert ends is not None
        assert 0 <= ends[0] <= ends[1] <= 1


def test_of_logged_evaluations_the_last_line_counts() -> None:
    config = EvaluationConfig()
    (old,) = measured([count("a", 1, 0)], config)
    (new,) = measured([count("a", 1, 1)], config)
    (one,) = logged([old.evaluation, new.evaluation])
    assert one.evaluation.pass_at == {1: 1.0}
    assert one.pass_ends[1] is not None
