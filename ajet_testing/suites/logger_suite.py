"""Conformance tests for metrics loggers. Subclass `LoggerSuite` in a test module."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import pytest

from ajet_core.interfaces import EndReason, LoggedRun, MetricsLogger, WorkerContext
from ajet_core.protocol import Evaluation, Finding, RunConfig
from ajet_testing.conformance import ConformanceSuite

__all__ = ["EVALUATION", "STEPS", "SYSTEM", "LoggerSuite"]

_Steps = Sequence[tuple[int, Mapping[str, float]]]

STEPS: _Steps = tuple(
    (number, MappingProxyType(metrics))
    for number, metrics in (
        (1, {"reward_mean": 0.25, "loss": -1.234567, "tokens_raw": 1e9}),
        # Metrics come and go, and tags can be any text.
        (2, {"reward_mean": 0.0, "loss": 1e-30, "reward_mean/a tag, žluťoučký/\u2028": 0.5}),
        (4, {"reward_mean": -1e30, "loss": -0.0, "kl": 3.0, "calls/" + "x" * 200: 1.0}),
    )
)
"""_Steps with metrics that the server may report, read-only as the server's."""

EVALUATION = Evaluation(
    client_id="client",
    tag="validation/žluťoučký",
    step=2,
    tasks=2,
    episodes=8,
    open=0,
    aborted=1,
    mixed=0,
    reward_mean=0.75,
    pass_at={1: 0.5, 4: 1.0},
)


SYSTEM = MappingProxyType({"system/cpu_percent": 12.5, "system/memory_available_bytes": 2.0**33})
"""Measurements of a machine, read-only as the server's."""


class LoggerSuite(ConformanceSuite):
    """Conformance tests of a `MetricsLogger`; a subclass creates one and reads what it wrote.

    As in a server, a logger is created and called on one thread, which is not the main thread.

    :cvar metrics: the metrics that the logger records; None for all.
    :cvar evaluations: whether it records evaluations.
    """

    metrics: ClassVar[frozenset[str] | None] = None
    evaluations: ClassVar[bool] = True

    def make_logger(self, context: WorkerContext) -> MetricsLogger:
        """Create a logger."""
        raise NotImplementedError

    def read_steps(self, context: WorkerContext) -> _Steps:
        """Return the steps that loggers with this context recorded, in order.

        A step that was recorded twice may be returned twice or once.
        """
        raise NotImplementedError

    def read_evaluations(self, context: WorkerContext) -> Sequence[tuple[str, int, float | None]]:
        """Return tag, step and mean reward of the evaluations that were recorded, in order."""
        raise NotImplementedError

    def test_steps_come_back_in_order(self, tmp_path: Path) -> None:
        context = _context(tmp_path)
        self._use(context, lambda logger: _whole_run(logger, 0, STEPS))
        assert [number for number, _ in self.read_steps(context)] == [1, 2, 4]
        self._check(context, dict(STEPS))

    def test_a_run_that_continues_adds_to_what_is_there(self, tmp_path: Path) -> None:
        """A server that was killed repeats the steps after its checkpoint."""
        context = _context(tmp_path)
        later = [(4, {"reward_mean": 0.5, "loss": 2.0}), (5, {"reward_mean": 1.0, "loss": 1.0})]
        self._use(context, lambda logger: _whole_run(logger, 0, STEPS))
        self._use(context, lambda logger: _whole_run(logger, 2, later, segment=1))
        self._check(context, dict(STEPS) | dict(later))

    def test_one_logger_records_several_runs(self, tmp_path: Path) -> None:
        context = _context(tmp_path)

        def use(logger: MetricsLogger) -> None:
            _whole_run(logger, 0, STEPS[:2])
            _whole_run(logger, 2, STEPS[2:])

        self._use(context, use)
        self._check(context, dict(STEPS))

    @pytest.mark.parametrize("reason", ["done", "stopped", "failed", "interrupted"])
    def test_a_run_can_end_for_any_reason(self, tmp_path: Path, reason: EndReason) -> None:
        context = _context(tmp_path)
        message = "the disk is full:\n 'žluťoučký'" if reason == "failed" else ""

        def use(logger: MetricsLogger) -> None:
            logger.start(_run(0))
            for number, metrics in STEPS:
                logger.log(number, metrics)
            logger.finish(reason, message)

        self._use(context, use)
        self._check(context, dict(STEPS))

    def test_a_run_without_an_end_is_written_when_its_logger_is_closed(
        self, tmp_path: Path
    ) -> None:
        """A server that is stopped while its loggers are busy may not finish the run."""
        context = _context(tmp_path)

        def use(logger: MetricsLogger) -> None:
            logger.start(_run(0))
            for number, metrics in STEPS:
                logger.log(number, metrics)

        self._use(context, use)
        self._check(context, dict(STEPS))

    def test_a_logger_without_records_can_be_closed(self, tmp_path: Path) -> None:
        """A server that never starts a run, and one whose run ends before its first step."""
        context = _context(tmp_path)
        self._use(context, lambda _: None)
        self._use(context, lambda logger: _whole_run(logger, 0, ()))
        # A server that is stopped while its loggers are busy may not finish the run.
        self._use(context, lambda logger: logger.start(_run(0)))
        assert list(self.read_steps(context)) == []

    def test_a_run_that_returns_repeats_its_steps(self, tmp_path: Path) -> None:
        """The server was not started again, so the same logger gets another segment."""
        context = _context(tmp_path)
        repeated = [(2, {"loss": 5.0}), (3, {"loss": 6.0})]

        def use(logger: MetricsLogger) -> None:
            _whole_run(logger, 0, STEPS, "interrupted")
            _whole_run(logger, 1, repeated, segment=1)

        self._use(context, use)
        recorded = dict(self.read_steps(context))
        for number, metrics in [STEPS[0], *repeated]:
            kept = {n: v for n, v in metrics.items() if self.metrics is None or n in self.metrics}
            assert recorded[number] == pytest.approx(kept, rel=1e-6, abs=1e-36)

    def test_findings_and_measurements_do_not_disturb_steps(self, tmp_path: Path) -> None:
        context = _context(tmp_path)
        finding = Finding(
            code="kl", message="grew\n<b>tenfold</b> žluťoučký", seconds=1.5, stuck=False
        )

        def use(logger: MetricsLogger) -> None:
            logger.start(_run(0))
            for number, metrics in STEPS:
                logger.log_system(1.7e9 + number, number - 1, SYSTEM)
                logger.log(number, metrics)
                logger.log_finding(number, finding)
                logger.log_system(1.7e9 + number + 0.5, number, SYSTEM)
            logger.finish("done", "")

        self._use(context, use)
        self._check(context, dict(STEPS))

    def test_metrics_remain_as_they_are(self, tmp_path: Path) -> None:
        own = dict(STEPS[0][1])
        self._use(_context(tmp_path), lambda logger: _whole_run(logger, 0, [(1, own)]))
        assert own == STEPS[0][1]

    def test_evaluations_come_back(self, tmp_path: Path) -> None:
        context = _context(tmp_path)
        # More episodes of the same one, and one of which no episode has ended.
        more = EVALUATION.model_copy(update={"episodes": 9, "reward_mean": 0.5})
        empty = EVALUATION.model_copy(update={"tag": "", "reward_mean": None, "pass_at": {}})

        def use(logger: MetricsLogger) -> None:
            logger.start(_run(2))
            for evaluation in (EVALUATION, more, empty):
                logger.log_evaluation(evaluation)
            logger.finish("done", "")

        # This must not raise, whether they are recorded or not.
        self._use(context, use)
        if not self.evaluations:
            pytest.skip("the logger does not record evaluations")
        recorded = {(tag, step): mean for tag, step, mean in self.read_evaluations(context)}
        assert recorded[EVALUATION.tag, 2] == pytest.approx(0.5)
        assert set(recorded) - {("", 2)} == {(EVALUATION.tag, 2)}

    def test_a_closed_logger_leaves_no_thread_behind(self, tmp_path: Path) -> None:
        """The server cannot exit while a thread that is not a daemon runs."""
        before = set(threading.enumerate())
        self._use(_context(tmp_path), lambda logger: _whole_run(logger, 0, STEPS))
        assert [t for t in threading.enumerate() if t not in before and not t.daemon] == []

    def test_all_files_are_in_the_run_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Wherever the server was started. Files that are gone at the end do not count."""
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        monkeypatch.chdir(elsewhere)
        # What is imported is not compiled to files.
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        context = _context(tmp_path)
        with _written() as written:
            self._use(context, lambda logger: _whole_run(logger, 0, STEPS))
        # Native code can write unnoticed, but most often writes here.
        written |= {path.resolve() for path in elsewhere.rglob("*")}
        outside = [
            str(path)
            for path in sorted(written)
            if path.is_file() and not path.is_relative_to(context.run_dir.resolve())
        ]
        assert outside == []

    def _use(self, context: WorkerContext, use: Callable[[MetricsLogger], None]) -> None:
        """Create, use and close a logger on another thread."""

        def work() -> None:
            logger = self.make_logger(context)
            use(logger)
            logger.close()

        with ThreadPoolExecutor(1) as thread:
            thread.submit(work).result()

    def _check(self, context: WorkerContext, wanted: Mapping[int, Mapping[str, float]]) -> None:
        """Compare what was recorded of each step, the last time, with what it should be."""
        recorded = dict(self.read_steps(context))
        assert list(recorded) == list(wanted)
        for number, metrics in wanted.items():
            kept = {n: v for n, v in metrics.items() if self.metrics is None or n in self.metrics}
            assert dict(recorded[number]) == pytest.approx(kept, rel=1e-6, abs=1e-36)


# The sets of files that are being collected, and whether the audit hook has been added.
_writing: list[set[Path]] = []
_hooked: list[bool] = []


@contextmanager
def _written() -> Iterator[set[Path]]:
    """Collect the files that Python opens for writing, or as databases of SQLite, anywhere."""
    if not _hooked:
        # It cannot be removed, so there is one for all tests.
        sys.addaudithook(_note)
        _hooked.append(True)
    written = set[Path]()
    _writing.append(written)
    try:
        yield written
    finally:
        _writing.remove(written)


_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if not _writing:
        return
    path = None
    if (event == "open" and arguments[2] & _WRITES) or event == "sqlite3.connect":
        path = arguments[0]
    elif event in ("os.rename", "os.link", "os.symlink"):
        path = arguments[1]
    if isinstance(path, str | bytes | os.PathLike):
        for written in _writing:
            written.add(Path(os.path.realpath(os.fsdecode(path))))


def _context(directory: Path) -> WorkerContext:
    run_dir = directory / "run"
    run_dir.mkdir()
    return WorkerContext(run_dir=run_dir)


def _run(resumed_step: int, segment: int = 0) -> LoggedRun:
    config = RunConfig.model_validate({"model": {"path": "/models/tiny"}})
    return LoggedRun("0123456789ab", config, resumed_step, segment)


def _whole_run(
    logger: MetricsLogger,
    resumed_step: int,
    steps: _Steps,
    reason: EndReason = "done",
    segment: int = 0,
) -> None:
    logger.start(_run(resumed_step, segment))
    for number, metrics in steps:
        logger.log(number, metrics)
    logger.finish(reason, "")
