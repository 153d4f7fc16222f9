from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from ajet_core.errors import StoreError
from ajet_core.interfaces import MetricsLogger, WorkerContext
from ajet_core.protocol import Evaluation
from ajet_server.embedded.jsonl_logger import JsonlLogger
from ajet_server.embedded.settings import JsonlLoggerSettings
from ajet_testing.suites.logger_suite import LoggerSuite


def make_logger(run_dir: Path) -> JsonlLogger:
    return JsonlLogger(JsonlLoggerSettings(), WorkerContext(run_dir))


def lines(run_dir: Path) -> list[object]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def test_a_line_is_readable_at_once(tmp_path: Path) -> None:
    logger = make_logger(tmp_path / "new")
    logger.log(1, {"loss": 0.5})
    assert lines(tmp_path / "new") == [{"step": 1, "loss": 0.5}]
    logger.close()


def test_a_repeated_step_is_appended(tmp_path: Path) -> None:
    for loss in (0.5, 0.25):
        logger = make_logger(tmp_path)
        logger.log(1, {"loss": loss})
        logger.close()
    assert lines(tmp_path) == [{"step": 1, "loss": 0.5}, {"step": 1, "loss": 0.25}]


def test_numbers_json_does_not_have_become_null(tmp_path: Path) -> None:
    logger = make_logger(tmp_path)
    logger.log(1, {"loss": float("nan"), "kl": float("inf"), "step": 7.0})
    logger.close()
    assert lines(tmp_path) == [{"step": 1, "loss": None, "kl": None}]


def test_evaluations_have_a_file_of_their_own(tmp_path: Path) -> None:
    evaluation = Evaluation(
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
    logger = make_logger(tmp_path)
    logger.log_evaluation(evaluation)
    logger.log(2, {"loss": 0.5})
    logger.close()
    (line,) = (tmp_path / "evaluations.jsonl").read_text().splitlines()
    assert Evaluation.model_validate_json(line) == evaluation
    assert lines(tmp_path) == [{"step": 2, "loss": 0.5}]


def test_half_a_line_of_a_dead_process_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "lo')
    logger = make_logger(tmp_path)
    logger.log(2, {})
    logger.close()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "lo\n{"step": 2}\n'


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(StoreError, match=r"metrics\.jsonl"):
        make_logger(tmp_path).log(1, {})


class TestJsonl(LoggerSuite):
    def make_logger(self, context: WorkerContext) -> MetricsLogger:
        return JsonlLogger(JsonlLoggerSettings(), context)

    def read_steps(self, context: WorkerContext) -> list[tuple[int, Mapping[str, float]]]:
        path = context.run_dir / "metrics.jsonl"
        found = (
            [json.loads(line) for line in path.read_text().split("\n")[:-1]]
            if path.exists()
            else []
        )
        return [(line.pop("step"), line) for line in found]

    def read_evaluations(self, context: WorkerContext) -> list[tuple[str, int, float | None]]:
        text = (context.run_dir / "evaluations.jsonl").read_text()
        found = [json.loads(line) for line in text.split("\n")[:-1]]
        return [(line["tag"], line["step"], line["reward_mean"]) for line in found]
