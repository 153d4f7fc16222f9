"""Loggers that fail, and what becomes of the others."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from ajet_core.errors import ConfigError, StoreError
from ajet_core.interfaces import ComponentSettings, MetricsLogger, WorkerContext
from ajet_core.protocol import Evaluation, StepSummary
from ajet_installation.settings import Settings
from ajet_server.build import build_service
from ajet_server.observe.metrics_loggers import MetricsLoggers
from ajet_testing.plugins import scripted_plugins

STEP = StepSummary(step=2, policy_version=2, metrics={"loss": 0.5})
EVALUATION = Evaluation(
    client_id="c",
    tag="t",
    step=2,
    tasks=1,
    episodes=2,
    open=0,
    aborted=0,
    mixed=0,
    reward_mean=0.5,
    pass_at={1: 0.5},
)


class StepsOnly(MetricsLogger):
    """Remembers steps, and has no place for evaluations."""

    def __init__(self) -> None:
        super().__init__(ComponentSettings(), WorkerContext(Path()))
        self.told: list[object] = []

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.told.append(step)

    def close(self) -> None:
        self.told.append("closed")


class Everything(StepsOnly):
    """Remembers evaluations too."""

    def log_evaluation(self, evaluation: Evaluation) -> None:
        self.told.append(evaluation.tag)


class Broken(StepsOnly):
    """Raises."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        raise self._error

    def log_evaluation(self, evaluation: Evaluation) -> None:
        raise self._error


@pytest.mark.parametrize("error", [StoreError("the disk is full"), KeyError("no such project")])
def test_a_logger_that_fails_is_reported_and_the_others_are_told(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    last = Everything()
    loggers = MetricsLoggers([Broken(error), StepsOnly(), last])
    loggers.log_step(STEP)
    loggers.log_evaluation(EVALUATION)
    loggers.close()
    assert last.told == [2, "t", "closed"]
    assert "metrics of step 2 were not logged" in caplog.text
    assert "the evaluation of 't' at step 2 was not logged" in caplog.text
    assert str(error.args[0]) in caplog.text


def test_a_logger_without_a_place_for_evaluations_is_not_asked_for_one() -> None:
    logger = StepsOnly()
    MetricsLoggers([logger]).log_evaluation(EVALUATION)
    assert logger.told == []


def settings_of(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings with the loggers of an ``ajet.toml``."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ajet.toml").write_text(text)
    return Settings(server={"run_dir": tmp_path / "run"})


def test_a_logger_gets_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of("[loggers.jsonl]\nfile = 'mine.jsonl'\n", tmp_path, monkeypatch)
    service = build_service(settings, scripted_plugins())
    service.loggers.log_step(STEP)
    assert "loss" in (tmp_path / "run" / "mine.jsonl").read_text()


def test_wrong_settings_of_a_logger_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of("[loggers.jsonl]\nfiel = 'mine.jsonl'\n", tmp_path, monkeypatch)
    with pytest.raises(ConfigError, match="fiel"):
        build_service(settings, scripted_plugins())
