"""The logger passes the suite; everything is read back by Trackio's own storage."""

from __future__ import annotations

import resource
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from ajet_loggers_trackio.logger import TrackioLogger
from ajet_loggers_trackio.settings import TrackioSettings
from trackio import sqlite_storage, utils
from trackio.sqlite_storage import SQLiteStorage

from ajet_core.errors import PluginError
from ajet_core.interfaces import LoggedRun, MetricsLogger, WorkerContext
from ajet_core.protocol import Finding, RunConfig
from ajet_loggers.tracking import evaluation_metrics
from ajet_testing.suites.logger_suite import EVALUATION, SYSTEM, LoggerSuite

RUN = "0123456789ab"
PROJECT = "agentjet"
EVALUATED = f"evaluation/{EVALUATION.client_id}/{EVALUATION.tag}"


@pytest.fixture(autouse=True)
def monkeypatched(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    return monkeypatch


def use(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """Let Trackio, which has one directory for each process, use that of a test."""
    for module in (utils, sqlite_storage):
        monkeypatch.setattr(module, "TRACKIO_DIR", directory)


def rows() -> list[dict[str, Any]]:
    """Rows of all runs, in the order they were written."""
    ids = [record["id"] for record in SQLiteStorage.get_run_records(PROJECT)]
    every = [row for own in ids for row in SQLiteStorage.get_logs(PROJECT, run_id=own)]
    return sorted(every, key=lambda row: row["timestamp"])


class TestTrackioLogger(LoggerSuite):
    @pytest.fixture(autouse=True)
    def patch(self, monkeypatched: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatched

    def make_logger(self, context: WorkerContext) -> MetricsLogger:
        use(self.monkeypatch, context.run_dir / "trackio")
        return TrackioLogger(TrackioSettings(), context)

    def read_steps(self, context: WorkerContext) -> Sequence[tuple[int, Mapping[str, float]]]:
        return [
            (row["step"], {n: v for n, v in row.items() if n not in ("step", "timestamp")})
            for row in rows()
        ]

    def read_evaluations(self, context: WorkerContext) -> Sequence[tuple[str, int, float | None]]:
        return [
            (EVALUATION.tag, row["step"], row[f"{EVALUATED}/reward_mean"])
            for row in rows()
            if f"{EVALUATED}/reward_mean" in row
        ]


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatched: pytest.MonkeyPatch) -> Path:
    use(monkeypatched, tmp_path / "trackio")
    return tmp_path


def run_of(resumed_step: int = 0, segment: int = 0) -> LoggedRun:
    config = RunConfig.model_validate({"model": {"path": "/m"}})
    return LoggedRun(RUN, config, resumed_step, segment)


def logger_of(run_dir: Path, **settings: object) -> TrackioLogger:
    return TrackioLogger(TrackioSettings.model_validate(settings), WorkerContext(run_dir))


def losses(own: str) -> list[tuple[int, float]]:
    return [(row["step"], row["loss"]) for row in SQLiteStorage.get_logs(PROJECT, run_id=own)]


def test_a_repeated_step_is_in_a_run_of_its_own(run_dir: Path) -> None:
    logger = logger_of(run_dir, name="first")
    logger.start(run_of())
    for step in (1, 2, 3):
        logger.log(step, {"loss": float(step)})
    logger.finish("interrupted", "")
    logger.start(run_of(resumed_step=1, segment=1))
    logger.log(2, {"loss": 20.0})
    # A server that was killed.
    again = logger_of(run_dir, name="first")
    again.start(run_of(resumed_step=2, segment=1))
    again.log(3, {"loss": 30.0})
    assert losses(RUN) == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert losses(f"{RUN}-1") == [(2, 20.0), (3, 30.0)]
    names = {record["name"] for record in SQLiteStorage.get_run_records(PROJECT)}
    assert names == {"first", "first-1"}


def test_the_configuration_is_with_the_run(run_dir: Path) -> None:
    logger = logger_of(run_dir)
    logger.start(run_of())
    logger.log(1, {"loss": 1.0})
    config = SQLiteStorage.get_run_config(PROJECT, RUN, run_id=RUN)
    assert config is not None
    assert (config["model"]["path"], config["_Group"]) == ("/m", RUN)


def test_findings_and_failures_are_alerts(run_dir: Path) -> None:
    logger = logger_of(run_dir)
    logger.start(run_of())
    message = "<b>grew</b>"
    logger.log_finding(7, Finding(code="kl", message=message, seconds=0.0, stuck=False))
    logger.finish("failed", "the disk is full")
    alerts = SQLiteStorage.get_alerts(PROJECT, run_id=RUN)
    assert {(a["title"], a["text"], a["level"], a["step"]) for a in alerts} == {
        ("kl", message, "warn", 7),
        ("run failed", "the disk is full", "error", None),
    }


def test_measurements_have_their_time(run_dir: Path) -> None:
    logger = logger_of(run_dir)
    logger.start(run_of())
    logger.log_system(1000.5, 3, SYSTEM)
    (row,) = SQLiteStorage.get_system_logs(PROJECT, run_id=RUN)
    assert row.pop("timestamp") == "1970-01-01T00:16:40.500000+00:00"
    assert row == dict(SYSTEM)


def test_evaluations_have_intervals(run_dir: Path) -> None:
    logger = logger_of(run_dir)
    logger.start(run_of())
    logger.log_evaluation(EVALUATION)
    (row,) = rows()
    assert row["step"] == EVALUATION.step
    assert {name: row[name] for name in evaluation_metrics(EVALUATION)} == evaluation_metrics(
        EVALUATION
    )


def test_a_full_disk_is_an_error_and_later_records_are_there(run_dir: Path) -> None:
    logger = logger_of(run_dir)
    logger.start(run_of())
    logger.log(1, {"loss": 1.0})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        with pytest.raises((OSError, sqlite3.Error)):
            logger.log(2, {f"m{number}": 1.0 for number in range(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    logger.log(3, {"loss": 3.0})
    assert losses(RUN) == [(1, 1.0), (3, 3.0)]


def test_one_process_has_one_directory(run_dir: Path) -> None:
    with pytest.raises(PluginError, match="a server process of its own"):
        logger_of(run_dir, directory="elsewhere")
