"""The logger passes the suite; everything is read back by TensorBoard's own reader."""

from __future__ import annotations

import errno
import resource
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from ajet_loggers_tensorboard.logger import TensorBoardLogger
from ajet_loggers_tensorboard.settings import TensorBoardSettings
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ajet_core.interfaces import LoggedRun, MetricsLogger, WorkerContext
from ajet_core.protocol import Finding, RunConfig
from ajet_loggers.tracking import evaluation_metrics
from ajet_testing.suites.logger_suite import EVALUATION, STEPS, SYSTEM, LoggerSuite

EVERYTHING = {"scalars": 0, "tensors": 0}
RUN = "0123456789ab"


def read(run_dir: Path, run: str = RUN) -> EventAccumulator:
    events = EventAccumulator(str(run_dir / "tensorboard" / run), size_guidance=EVERYTHING)
    return events.Reload()


def points(events: EventAccumulator, tag: str) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in events.Scalars(tag)]


def text(events: EventAccumulator, tag: str) -> str:
    (tensor,) = events.Tensors(tag)
    return tensor.tensor_proto.string_val[0].decode()


class TestTensorBoardLogger(LoggerSuite):
    def make_logger(self, context: WorkerContext) -> MetricsLogger:
        return TensorBoardLogger(TensorBoardSettings(), context)

    def read_steps(self, context: WorkerContext) -> Sequence[tuple[int, Mapping[str, float]]]:
        if not (context.run_dir / "tensorboard").exists():
            return []
        events = read(context.run_dir)
        steps: dict[int, dict[str, float]] = defaultdict(dict)
        for tag in events.Tags()["scalars"]:
            if not tag.startswith("system/"):
                for step, value in points(events, tag):
                    steps[step][tag] = value
        return sorted(steps.items())

    def read_evaluations(self, context: WorkerContext) -> Sequence[tuple[str, int, float | None]]:
        events = read(context.run_dir)
        of = f"evaluation/{EVALUATION.client_id}/{EVALUATION.tag}"
        return [(EVALUATION.tag, *point) for point in points(events, f"{of}/reward_mean")]


def run_of(resumed_step: int = 0, segment: int = 0) -> LoggedRun:
    config = RunConfig.model_validate({"model": {"path": "/m"}})
    return LoggedRun(RUN, config, resumed_step, segment)


def logger_of(run_dir: Path, **settings: object) -> TensorBoardLogger:
    return TensorBoardLogger(TensorBoardSettings.model_validate(settings), WorkerContext(run_dir))


def test_a_repeated_step_is_there_once(tmp_path: Path) -> None:
    logger = logger_of(tmp_path)
    logger.start(run_of())
    for step in (1, 2, 3):
        logger.log(step, {"loss": float(step)})
        logger.log_system(0.0, step, SYSTEM)
    logger.finish("interrupted", "")
    logger.start(run_of(resumed_step=1, segment=1))
    logger.log(2, {"loss": 20.0})
    # A server that was killed.
    again = logger_of(tmp_path)
    again.start(run_of(resumed_step=2, segment=1))
    again.log(3, {"loss": 30.0})
    again.close()
    events = read(tmp_path)
    assert points(events, "loss") == [(1, 1.0), (2, 20.0), (3, 30.0)]
    assert points(events, "system/cpu_percent") == [(1, 12.5)]


def test_the_configuration_is_written_once(tmp_path: Path) -> None:
    for resumed in (0, 1):
        logger = logger_of(tmp_path)
        logger.start(run_of(resumed))
        logger.log(resumed + 1, {"loss": 0.0})
        logger.close()
    assert "    model.path = /m\n" in text(read(tmp_path), "config")


def test_a_finding_is_shown_as_it_is(tmp_path: Path) -> None:
    logger = logger_of(tmp_path)
    logger.start(run_of())
    message = "# grew\n\n<script>alert(1)</script>"
    logger.log_finding(7, Finding(code="kl", message=message, seconds=0.0, stuck=False))
    logger.close()
    events = read(tmp_path)
    assert events.Tensors("findings/kl")[0].step == 7
    # Markdown's form of code: nothing of it is interpreted.
    assert text(events, "findings/kl") == "    # grew\n    \n    <script>alert(1)</script>"


def test_measurements_have_their_time(tmp_path: Path) -> None:
    logger = logger_of(tmp_path)
    logger.start(run_of())
    for at in (1000.5, 1010.5):
        logger.log_system(at, 3, SYSTEM)
    logger.close()
    read_back = read(tmp_path).Scalars("system/memory_available_bytes")
    assert [(p.wall_time, p.step, p.value) for p in read_back] == [
        (1000.5, 3, 2.0**33),
        (1010.5, 3, 2.0**33),
    ]


def test_evaluations_have_intervals(tmp_path: Path) -> None:
    logger = logger_of(tmp_path, directory=str(tmp_path / "tensorboard"))
    logger.start(run_of())
    logger.log_evaluation(EVALUATION)
    logger.close()
    events = read(tmp_path)
    for name, value in evaluation_metrics(EVALUATION).items():
        assert points(events, name) == [(EVALUATION.step, pytest.approx(value))]


def test_after_a_full_disk_records_are_readable_again(tmp_path: Path) -> None:
    logger = logger_of(tmp_path)
    logger.start(run_of())
    logger.log(1, {"loss": 1.0})
    (file,) = (tmp_path / "tensorboard" / RUN).iterdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The kernel writes a part of the record, then refuses.
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 10, hard))
    try:
        with pytest.raises(OSError, match=r"\[Errno") as raised:
            logger.log(2, {"loss": 2.0})
        assert raised.value.errno in (errno.ENOSPC, errno.EFBIG)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    logger.log(3, {"loss": 3.0})
    logger.close()
    assert points(read(tmp_path), "loss") == [(1, 1.0), (3, 3.0)]


def test_all_steps_have_a_name_that_tensorboard_has(tmp_path: Path) -> None:
    logger = logger_of(tmp_path)
    logger.start(run_of())
    logger.log(1, STEPS[1][1])
    logger.close()
    assert set(read(tmp_path).Tags()["scalars"]) == set(STEPS[1][1])
