"""Records in the forms that trackers share."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet_core.interfaces import LoggedRun
from ajet_core.protocol import RunConfig
from ajet_loggers.tracking import evaluation_metrics, flat_config, tracker_id
from ajet_testing.suites.logger_suite import EVALUATION


def run(segment: int = 0) -> LoggedRun:
    config = RunConfig.model_validate(
        {"model": {"path": "/m"}, "engine": {"name": "e", "settings": {"a": {"b": [1]}}}}
    )
    return LoggedRun("r", config, 0, segment)


def test_each_segment_has_an_id_of_its_own() -> None:
    assert [tracker_id(run(segment)) for segment in (0, 1, 2)] == ["r", "r-1", "r-2"]


def test_settings_have_dotted_names() -> None:
    flat = flat_config(run())
    assert flat["model.path"] == "/m"
    assert flat["engine.settings.a.b"] == "[1]"
    assert flat["trainer.settings"] == "{}"
    assert set(map(type, flat.values())) == {str}


def test_an_evaluation_has_a_name_for_each_number() -> None:
    of = f"evaluation/{EVALUATION.client_id}/{EVALUATION.tag}"
    metrics = evaluation_metrics(EVALUATION)
    names = {name.removeprefix(f"{of}/") for name in metrics}
    assert names == {
        *("tasks", "episodes", "aborted", "mixed", "reward_mean"),
        *("pass_at_1", "pass_at_4", "pass_at_1_low", "pass_at_1_high"),
    }
    assert (metrics[f"{of}/reward_mean"], metrics[f"{of}/pass_at_4"]) == (0.75, 1.0)


def test_an_evaluation_without_results_has_counts_alone() -> None:
    empty = EVALUATION.model_copy(update={"tasks": 0, "reward_mean": None, "pass_at": {}})
    names = {name.rpartition("/")[2] for name in evaluation_metrics(empty)}
    assert names == {"tasks", "episodes", "aborted", "mixed"}


def interval(share: float, tasks: int) -> tuple[float, float]:
    scored = EVALUATION.model_copy(update={"tasks": tasks, "pass_at": {1: share}})
    metrics = {name.rpartition("/")[2]: v for name, v in evaluation_metrics(scored).items()}
    return metrics["pass_at_1_low"], metrics["pass_at_1_high"]


def test_an_interval_is_wilsons() -> None:
    # 81 of 263, from R. G. Newcombe, Statistics in Medicine 17 (1998), table I.
    assert interval(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert interval(0.0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)


@settings(deadline=None)
@given(st.floats(0, 1), st.integers(1, 10**6))
def test_an_interval_contains_its_share(share: float, tasks: int) -> None:
    low, high = interval(share, tasks)
    assert 0 <= low <= share + 1e-12
    assert share - 1e-12 <= high <= 1
