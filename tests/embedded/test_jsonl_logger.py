from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from ajet_core.errors import StoreError
from ajet_core.interfaces import EndReason, LoggedRun, MetricsLogger, WorkerContext
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


class Late(JsonlLogger):
    """Writes nothing before it is closed, and then not all."""

    def __init__(self, settings: JsonlLoggerSettings, context: WorkerContext) -> None:
        super().__init__(settings, context)
        self.late: list[tuple[int, Mapping[str, float]]] = []

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.late.append((step, metrics))

    def close(self) -> None:
        for step, metrics in self.late[:-1]:
            super().log(step, metrics)
        super().close()


class Greedy(JsonlLogger):
    """Takes the metrics for its own."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        assert isinstance(metrics, dict)
        metrics["step"] = step
        super().log(step, metrics)


class Restarting(JsonlLogger):
    """Begins a new file with each run."""

    def start(self, run: LoggedRun) -> None:
        (self.context.run_dir / self.settings.file).unlink(missing_ok=True)


class OneRun(JsonlLogger):
    """Is closed at the end of its first run."""

    over = False

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        assert not self.over
        super().log(step, metrics)

    def finish(self, reason: EndReason, message: str) -> None:
        self.over = True


class Particular(JsonlLogger):
    """Ends well only."""

    def finish(self, reason: EndReason, message: str) -> None:
        if message:
            raise RuntimeError(message)


class Demanding(JsonlLogger):
    """Cannot be closed without a step."""

    seen = False

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.seen = True
        super().log(step, metrics)

    def close(self) -> None:
        assert self.seen
        super().close()


class Rounding(JsonlLogger):
    """Writes four digits."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        super().log(step, {name: round(value, 4) for name, value in metrics.items()})


class Threaded(JsonlLogger):
    """Leaves a thread that is no daemon."""

    gate = threading.Event()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        threading.Thread(target=self.gate.wait).start()
        super().log(step, metrics)


class Stray(JsonlLogger):
    """Writes into the working directory."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        Path("stray.txt").touch()
        super().log(step, metrics)


class FirstScores(JsonlLogger):
    """Keeps the first scores of an evaluation."""

    seen = False

    def log_evaluation(self, evaluation: Evaluation) -> None:
        if not self.seen:
            super().log_evaluation(evaluation)
        self.seen = True


@pytest.mark.parametrize(
    ("logger", "test", "arguments"),
    [
        (Late, "steps_come_back_in_order", []),
        (Rounding, "steps_come_back_in_order", []),
        (Greedy, "steps_come_back_in_order", []),
        (Restarting, "a_run_that_continues_adds_to_what_is_there", []),
        (OneRun, "one_logger_records_several_runs", []),
        (Particular, "a_run_can_end_for_any_reason", ["failed"]),
        (Demanding, "a_logger_without_records_can_be_closed", []),
        (Greedy, "metrics_remain_as_they_are", []),
        (FirstScores, "evaluations_come_back", []),
        (Threaded, "a_closed_logger_leaves_no_thread_behind", []),
        (Stray, "all_files_are_in_the_run_directory", ["monkeypatch"]),
    ],
)
def test_the_suite_notices(
    logger: type[JsonlLogger],
    test: str,
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Suite(TestJsonl):
        def make_logger(self, context: WorkerContext) -> MetricsLogger:
            return logger(JsonlLoggerSettings(), context)

    Threaded.gate.clear()
    given = [monkeypatch if name == "monkeypatch" else name for name in arguments]
    try:
        with pytest.raises((AssertionError, RuntimeError)):
            getattr(Suite(), f"test_{test}")(tmp_path, *given)
    finally:
        Threaded.gate.set()
