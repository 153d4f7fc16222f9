"""The logger passes the suite offline; everything is read from the file for `wandb sync`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import wandb_file
from ajet_loggers_wandb.logger import WandbLogger
from ajet_loggers_wandb.settings import WandbSettings

from ajet_core.interfaces import LoggedRun, MetricsLogger, WorkerContext
from ajet_core.protocol import Finding, RunConfig
from ajet_loggers.tracking import evaluation_metrics
from ajet_testing.suites.logger_suite import EVALUATION, SYSTEM, LoggerSuite

RUN = "0123456789ab"
EVALUATED = f"evaluation/{EVALUATION.client_id}/{EVALUATION.tag}"
OWN = ("_step", "_runtime", "_timestamp", "step")


def rows(run_dir: Path) -> list[dict[str, Any]]:
    return [row for _, records in wandb_file.runs(run_dir) for row in wandb_file.history(records)]


def metrics_of(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in OWN}


class TestWandbLogger(LoggerSuite):
    def make_logger(self, context: WorkerContext) -> MetricsLogger:
        return WandbLogger(WandbSettings(mode="offline"), context)

    def read_steps(self, context: WorkerContext) -> Sequence[tuple[int, Mapping[str, float]]]:
        return [
            (row["step"], metrics_of(row))
            for row in rows(context.run_dir)
            if "system/time" not in row
        ]

    def read_evaluations(self, context: WorkerContext) -> Sequence[tuple[str, int, float | None]]:
        return [
            (EVALUATION.tag, row["step"], row[f"{EVALUATED}/reward_mean"])
            for row in rows(context.run_dir)
            if f"{EVALUATED}/reward_mean" in row
        ]


def run_of(resumed_step: int = 0, segment: int = 0) -> LoggedRun:
    config = RunConfig.model_validate({"model": {"path": "/m"}})
    return LoggedRun(RUN, config, resumed_step, segment)


def logger_of(run_dir: Path, **settings: object) -> WandbLogger:
    wanted = WandbSettings.model_validate({"mode": "offline", **settings})
    return WandbLogger(wanted, WorkerContext(run_dir))


def test_a_run_that_continues_has_the_same_id_and_later_rows(tmp_path: Path) -> None:
    for resumed in (0, 2):
        logger = logger_of(tmp_path)
        logger.start(run_of(resumed))
        for step in (resumed + 1, resumed + 2):
            logger.log(step, {"loss": float(step)})
            logger.log_system(1000.5, step, SYSTEM)
        logger.close()
    first, second = wandb_file.runs(tmp_path)
    assert (first[0], second[0]) == (RUN, RUN)
    numbers = [row["_step"] for row in rows(tmp_path)]
    assert numbers == sorted(set(numbers))
    losses = [(row["step"], row["loss"]) for row in rows(tmp_path) if "loss" in row]
    assert losses == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]


def test_a_segment_is_another_run_of_the_group(tmp_path: Path) -> None:
    logger = logger_of(tmp_path, name="first")
    logger.start(run_of())
    for step in (1, 2):
        logger.log(step, {"loss": float(step)})
    logger.finish("interrupted", "")
    logger.start(run_of(resumed_step=1, segment=1))
    logger.log(2, {"loss": 20.0})
    logger.close()
    losses = {
        own: [(row["step"], row["loss"]) for row in wandb_file.history(records)]
        for own, records in wandb_file.runs(tmp_path)
    }
    assert losses == {RUN: [(1, 1.0), (2, 2.0)], f"{RUN}-1": [(2, 20.0)]}
    begun = [r.run for _, records in wandb_file.runs(tmp_path) for r in records if r.run.run_id]
    named = {(run.run_id, run.display_name, run.run_group) for run in begun}
    assert named == {(RUN, "first", RUN), (f"{RUN}-1", "first-1", RUN)}


def test_configuration_alerts_and_the_end_are_recorded(tmp_path: Path) -> None:
    logger = logger_of(tmp_path, tags=["tried"])
    logger.start(run_of())
    message = "<b>grew</b>"
    logger.log_finding(7, Finding(code="kl", message=message, seconds=0.0, stuck=False))
    logger.finish("failed", "the disk is full")
    ((_, records),) = wandb_file.runs(tmp_path)
    begun = next(record.run for record in records if record.run.run_id)
    config = {item.key: json.loads(item.value_json) for item in begun.config.update}
    assert config["model"]["path"] == "/m"
    assert list(begun.tags) == ["tried"]
    (alert,) = [r.alert for r in records if r.WhichOneof("record_type") == "alert"]
    assert (alert.title, alert.text) == ("kl", f"step 7: {message}")
    summary = {i.key: json.loads(i.value_json) for r in records for i in r.summary.update}
    assert (summary["ajet_end"], summary["ajet_message"]) == ("failed", "the disk is full")
    (end,) = [r.exit for r in records if r.WhichOneof("record_type") == "exit"]
    assert end.exit_code == 1


def test_measurements_and_evaluations_are_rows(tmp_path: Path) -> None:
    logger = logger_of(tmp_path)
    logger.start(run_of())
    logger.log_system(1000.5, 3, SYSTEM)
    logger.log_system(1010.5, 3, SYSTEM)
    logger.log_evaluation(EVALUATION)
    logger.close()
    *measured, evaluated = rows(tmp_path)
    assert [metrics_of(row) for row in measured] == [
        {**SYSTEM, "system/time": at} for at in (1000.5, 1010.5)
    ]
    assert metrics_of(evaluated) == pytest.approx(evaluation_metrics(EVALUATION))


def test_nothing_says_how_the_server_was_started(tmp_path: Path) -> None:
    """Its command line may contain what others must not read."""
    logger = logger_of(tmp_path)
    logger.start(run_of())
    logger.log(1, {"loss": 1.0})
    logger.close()
    assert list((tmp_path / "wandb").rglob("wandb-metadata.json")) == []
