"""Comparing a step with its record, and two updates of the same weights."""

from __future__ import annotations

import math

import pytest

from ajet_cli.changed_config import changed_config
from ajet_cli.replay.comparison import divergence, mean_change, reproduction
from ajet_cli.replay.retraining import CHANGEABLE
from ajet_core.errors import ConfigError
from ajet_core.interfaces import CallScore, StepReport
from ajet_core.protocol import ModelConfig, RunConfig
from ajet_core.timeline import TrainCall

CONFIG = RunConfig(model=ModelConfig(path="m"))


def call(name: str, advantage: float = 1.0) -> TrainCall:
    return TrainCall(name, 0, advantage, 1.0, [-1.0, -1.0], [0, 0])


def report(*logprobs: list[float], **metrics: float) -> StepReport:
    return StepReport(
        step=1,
        metrics=metrics,
        tokens_trained=0,
        tokens_processed=0,
        sequences=0,
        seconds=0.0,
        logprobs=list(logprobs),
    )


def test_the_same_numbers_are_identical() -> None:
    recorded = {"a": CallScore("a", 1.0, [-1.0, -2.0])}
    metrics = {"loss": 0.5, "update_seconds": 1.0, "reward_mean": 1.0}
    now = report([-1.0, -2.0], loss=0.5, update_seconds=9.0)
    assert reproduction(1, recorded, metrics, [call("a")], now, prepared={}).identical


def test_differences_are_measured() -> None:
    recorded = {"a": CallScore("a", 1.0, [-1.0, -2.0]), "gone": CallScore("gone", 1.0, [])}
    now = report([-1.0, -2.25], [-1.0], loss=0.75)
    calls = [call("a", 0.5), call("new")]
    metrics = {"loss": 0.5, "tokens_raw": 8.0}
    found = reproduction(1, recorded, metrics, calls, now, prepared={"tokens_raw": 9.0})
    assert not found.identical
    assert found.logprob_difference == 0.25
    assert found.advantage_difference == 0.5
    assert found.missing == 2
    assert found.metrics == {"loss": (0.5, 0.75), "tokens_raw": (8.0, 9.0)}


def test_the_divergence_is_over_tokens_that_both_computed() -> None:
    assert divergence([[-1.0, -1.0], []], [[-1.0, -1.2], [-1.0]]) == pytest.approx(0.01)
    assert divergence([[]], [[]]) is None
    assert mean_change([[-1.0], [-2.0]], [[-0.5], [-2.5]], [0]) == 0.5
    assert mean_change([[]], [[-1.0]], [0]) is None


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("algorithm.clip_high=0.28", 0.28),
        ("algorithm.aggregation=episode_mean", "episode_mean"),
        ('algorithm.aggregation="episode_mean"', "episode_mean"),
        ("timelines.max_tokens=100", 100),
        ("trainer.settings.loss_limit=5", 5),
    ],
)
def test_settings_of_training_can_be_changed(change: str, value: object) -> None:
    found = changed_config(CONFIG, [change], CHANGEABLE).model_dump()
    for name in change.partition("=")[0].split("."):
        found = found[name]
    assert found == value


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("batch.tasks=3", "other settings do not change"),
        ("model.path=other", "other settings do not change"),
        ("algorithm.clip_high", "expected PATH=VALUE"),
        ("algorithm.clip_high=-1", "algorithm.clip_high: Input should be greater than 0"),
        ("algorithm.nothing=1", "algorithm.nothing: unknown setting; known here: advantage"),
        ("algorithm.clip_high.low=1", "there is no setting algorithm.clip_high.low"),
        ("algorithm.importance_cap=3", "has no effect"),
    ],
)
def test_other_changes_are_refused(change: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        changed_config(CONFIG, [change], CHANGEABLE)


def test_metrics_that_only_one_has_are_nan() -> None:
    from ajet_cli.replay.comparison import both_metrics

    found = both_metrics(report(loss=1.0, a_seconds=1.0), report(loss=2.0, kl=0.5))
    assert found["loss"] == (1.0, 2.0)
    assert math.isnan(found["kl"][0])
    assert "a_seconds" not in found
