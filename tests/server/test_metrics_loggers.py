"""Loggers on threads of their own: what they receive, and what becomes of those that fail."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ajet_core.errors import ConfigError, PluginError, StoreError, UnknownComponentError
from ajet_core.interfaces import (
    ComponentSettings,
    EndReason,
    LoggedRun,
    MetricsLogger,
    WorkerContext,
)
from ajet_core.protocol import (
    ComponentChoice,
    Evaluation,
    Finding,
    ModelConfig,
    RunConfig,
    StepSummary,
)
from ajet_installation.settings import Settings
from ajet_server.build import build_service
from ajet_server.observe.logger_thread import LoggerThread
from ajet_server.observe.metrics_loggers import MetricsLoggers
from ajet_server.security.secrets import without_secrets
from ajet_testing.plugins import scripted_plugins

CONFIG = RunConfig.model_validate(
    {
        "model": {"path": "/model"},
        "engine": {"name": "e", "settings": {"api_key": "hidden", "size": 3}},
    }
)
RUN = LoggedRun("run-1", CONFIG, resumed_step=4)


def step(number: int) -> StepSummary:
    return StepSummary(step=number, policy_version=number, metrics={"loss": 0.5})


def evaluation(tag: str = "t") -> Evaluation:
    return Evaluation(
        client_id="c",
        tag=tag,
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
    """Remembers steps, and has no place for evaluations or runs."""

    def __init__(self) -> None:
        super().__init__(ComponentSettings(), WorkerContext(Path()))
        self.seen: list[object] = []

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.seen.append((step, dict(metrics)))

    def close(self) -> None:
        self.seen.append("closed")

    @property
    def steps(self) -> list[int]:
        return [each[0] for each in self.seen if isinstance(each, tuple)]


class Everything(StepsOnly):
    """Remembers evaluations and runs too."""

    def start(self, run: LoggedRun) -> None:
        self.seen.append(run)

    def log_evaluation(self, evaluation: Evaluation) -> None:
        self.seen.append(evaluation.tag)

    def log_finding(self, step: int, finding: Finding) -> None:
        self.seen.append(("finding", step, finding.code))

    def log_system(self, at: float, step: int, metrics: Mapping[str, float]) -> None:
        self.seen.append(("system", step, dict(metrics)))

    def finish(self, reason: EndReason, message: str) -> None:
        self.seen.append((reason, message))


class Raising(Everything):
    """Raises in one of its methods, as often as it is called."""

    def __init__(self, method: str, error: BaseException) -> None:
        super().__init__()

        def fail(*_: object) -> None:
            raise error

        setattr(self, method, fail)


class Gated(Everything):
    """Blocks in `log` until the gate opens."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.gate = threading.Event()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.entered.set()
        self.gate.wait()
        super().log(step, metrics)


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def made(
    *makers: Callable[[], MetricsLogger],
    limit: int = 100,
    seconds: float = 60.0,
    close_seconds: float = 60.0,
    clock: Callable[[], float] | None = None,
    position_file: Path = Path(os.devnull) / "none",
) -> MetricsLoggers:
    """Loggers by number."""
    threads = [
        LoggerThread(f"logger {number}", make, limit=limit, clock=clock or Clock())
        for number, make in enumerate(makers)
    ]
    return MetricsLoggers(
        threads, position_file=position_file, call_seconds=seconds, close_seconds=close_seconds
    )


@asynccontextmanager
async def running(*loggers: MetricsLogger, **changes: Any) -> AsyncIterator[MetricsLoggers]:
    """Loggers that are open within the context; then they have seen everything."""
    running = made(*((lambda logger=logger: logger) for logger in loggers), **changes)
    await running.open()
    yield running
    await running.close()


async def test_a_logger_receives_the_run_its_records_and_its_end() -> None:
    logger = Everything()
    async with running(logger) as loggers:
        loggers.start(RUN)
        loggers.log_step(step(5))
        loggers.log_evaluation(evaluation())
        loggers.log_step(step(6))
        loggers.finish("failed", "no memory")
    run, *others = logger.seen
    assert isinstance(run, LoggedRun)
    assert (run.run_id, run.resumed_step, run.config.model) == ("run-1", 4, CONFIG.model)
    assert others == [
        (5, {"loss": 0.5}),
        "t",
        (6, {"loss": 0.5}),
        ("failed", "no memory"),
        "closed",
    ]


async def test_a_logger_does_not_see_secrets() -> None:
    logger = Everything()
    async with running(logger) as loggers:
        loggers.start(RUN)
    assert isinstance(run := logger.seen[0], LoggedRun)
    assert run.config.engine.settings == {"api_key": "**********", "size": 3}
    assert CONFIG.engine.settings["api_key"] == "hidden"


def test_users_of_urls_are_masked_in_all_settings() -> None:
    config = RunConfig(
        model=ModelConfig(path="https://me:hunter@hub/model"),
        engine=ComponentChoice(
            name="e", settings={"urls": ["http://a:b@c/d", "http://e@f"], "n": 1}
        ),
    )
    masked = without_secrets(config)
    assert masked.model.path == "https://***@hub/model"
    assert masked.engine.settings == {"urls": ["http://***@c/d", "http://e@f"], "n": 1}


async def test_a_server_can_have_several_runs_one_after_another() -> None:
    logger = Everything()
    async with running(logger) as loggers:
        for number in (1, 2):
            loggers.start(RUN)
            loggers.log_step(step(number))
            loggers.finish("stopped")
    assert logger.steps == [1, "stopped", 2, "stopped"]
    assert [each for each in logger.seen if isinstance(each, LoggedRun)] == [logger.seen[0]] * 2


async def test_each_logger_is_created_and_called_on_one_thread_of_its_own() -> None:
    threads: list[list[int]] = []

    class Threaded(StepsOnly):
        def __init__(self) -> None:
            super().__init__()
            self.threads = [threading.get_ident()]
            threads.append(self.threads)

        def log(self, step: int, metrics: Mapping[str, float]) -> None:
            self.threads.append(threading.get_ident())

        def close(self) -> None:
            self.threads.append(threading.get_ident())

    loggers = made(Threaded, Threaded)
    await loggers.open()
    loggers.log_step(step(1))
    await loggers.close()
    assert [len(each) for each in threads] == [3, 3]
    one, other = map(set, threads)
    assert (len(one), len(other)) == (1, 1)
    assert threading.get_ident() not in one | other
    assert one != other


ERRORS = [StoreError("full disk"), KeyError("full disk"), SystemExit("full disk")]


@pytest.mark.parametrize("error", [*ERRORS, asyncio.CancelledError("full disk")], ids=repr)
@pytest.mark.parametrize("method", ["start", "log", "log_evaluation", "finish", "close"])
async def test_a_logger_that_fails_is_named_and_the_others_are_not_affected(
    method: str, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    last = Everything()
    async with running(Raising(method, error), StepsOnly(), last) as loggers:
        loggers.start(RUN)
        loggers.log_step(step(2))
        loggers.log_evaluation(evaluation())
        loggers.finish("done")
    assert last.seen[1:] == [(2, {"loss": 0.5}), "t", ("done", ""), "closed"]
    failures = [r for r in caplog.messages if r.startswith(f"logger 0: {method}")]
    assert failures
    assert all("failed: " in each and "full disk" in each for each in failures)
    assert loggers.blocked == []


async def test_a_repeated_error_has_one_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async with running(Raising("log", KeyError("project"))) as loggers:
        loggers.start(RUN)
        for number in (1, 2, 3):
            loggers.log_step(step(number))
    records = [record for record in caplog.records if "log of step" in record.getMessage()]
    assert [bool(record.exc_info) for record in records] == [True, False, False]


async def test_failures_are_a_finding_until_a_call_succeeds() -> None:
    logger = Raising("log", KeyError("project"))
    async with running(logger) as loggers:
        loggers.start(RUN)
        loggers.log_step(step(1))
        loggers.log_step(step(2))
        await loggers.settled()
        (found,) = loggers.findings()
        assert (found.code, found.stuck) == ("logger_failed", False)
        assert "logger 0: log of step 2 failed: KeyError: 'project'" in found.message
        assert "records of this run that are lost: 2" in found.message
        del logger.__dict__["log"]
        loggers.log_step(step(3))
        await loggers.settled()
        assert loggers.findings() == []


async def test_metrics_cannot_be_changed(caplog: pytest.LogCaptureFixture) -> None:
    class Changing(StepsOnly):
        def log(self, step: int, metrics: Mapping[str, float]) -> None:
            metrics.clear()  # type: ignore[attr-defined]

        def log_evaluation(self, evaluation: Evaluation) -> None:
            evaluation.pass_at.clear()

    last, summary, scores = Everything(), step(2), evaluation()
    async with running(Changing(), last) as loggers:
        loggers.start(RUN)
        loggers.log_step(summary)
        loggers.log_evaluation(scores)
    assert last.steps == [2]
    assert summary.metrics == {"loss": 0.5}
    assert scores.pass_at == {1: 0.5}
    assert "logger 0: log of step 2 failed: AttributeError" in caplog.text


async def test_a_later_change_of_the_summary_does_not_reach_a_slow_logger() -> None:
    logger, summary = Gated(), step(2)
    async with running(logger) as loggers:
        loggers.start(RUN)
        loggers.log_step(summary)
        summary.metrics["loss"] = 9.0
        logger.gate.set()
    assert logger.seen[1] == (2, {"loss": 0.5})


@pytest.fixture
def gated() -> Iterator[Gated]:
    """A blocked logger, whose thread ends with the test."""
    logger = Gated()
    yield logger
    logger.gate.set()


async def test_a_logger_that_blocks_for_ever_stops_nothing_and_is_named(
    gated: Gated, caplog: pytest.LogCaptureFixture
) -> None:
    clock, last = Clock(), Everything()
    async with running(gated, last, seconds=30.0, close_seconds=0.1, clock=clock) as loggers:
        loggers.start(RUN)
        loggers.log_step(step(1))
        loggers.log_step(step(2))
        await asyncio.to_thread(gated.entered.wait)
        assert loggers.findings() == []
        clock.now = 31.0
        (found,) = loggers.findings()
        assert (found.code, found.seconds, found.stuck) == ("logger_behind", 31.0, False)
        assert found.message == "logger 0: log of step 1 has taken 31 s; waiting records: 1"
        loggers.report()
        loggers.report()
        # A logger that is known to be blocked is not waited for.
        await loggers.settled()
        assert last.steps == [1, 2]
        loggers.finish("interrupted")
    assert last.seen[-2:] == [("interrupted", ""), "closed"]
    assert loggers.blocked == ["logger 0"]
    said = [message for message in caplog.messages if message.startswith("logger 0")]
    slow, unfinished = said
    assert slow.endswith("log of step 1 has taken 31 s; training continues; waiting records: 1")
    assert unfinished == (
        "logger 0 has not ended after 0.1 s (setting server.logger_close_seconds): log of step 1 "
        "has taken 31 s; records not logged: 1"
    )


async def test_a_logger_that_was_blocked_catches_up(
    gated: Gated, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    async with running(gated, seconds=30.0, clock=clock) as loggers:
        loggers.start(RUN)
        for number in (1, 2, 3):
            loggers.log_step(step(number))
        await asyncio.to_thread(gated.entered.wait)
        clock.now = 45.0
        loggers.report()
        gated.gate.set()
    assert gated.steps == [1, 2, 3]
    assert loggers.findings() == []
    assert "logger 0: log of step 1 returned after 45 s" in caplog.text


async def test_a_full_queue_drops_the_oldest_records_and_no_start_or_end(
    gated: Gated, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(gated, limit=3) as loggers:
        loggers.start(RUN)
        loggers.log_step(step(1))
        await asyncio.to_thread(gated.entered.wait)
        for number in range(2, 8):
            loggers.log_step(step(number))
        (found,) = loggers.findings()
        assert found.code == "logger_behind"
        assert found.message.endswith(
            "waiting records: 3; dropped: 3 (setting server.logger_queue)"
        )
        loggers.finish("stopped")
        gated.gate.set()
        await loggers.settled()
        assert gated.steps == [1, 5, 6, 7, "stopped"]
        # What was lost is shown until the next run.
        assert "; dropped: 3 (" in loggers.findings()[0].message
        loggers.start(RUN)
        assert loggers.findings() == []
    said = [message for message in caplog.messages if "is full" in message]
    assert len(said) == 1
    assert "logger 0: its queue of 3 records is full (setting server.logger_queue)" in said[0]
    assert "first log of step 2; the present call is log of step 1" in said[0]


async def test_a_full_queue_drops_measurements_before_steps(gated: Gated) -> None:
    async with running(gated, limit=3) as loggers:
        loggers.start(RUN)
        loggers.log_step(step(1))
        await asyncio.to_thread(gated.entered.wait)
        loggers.log_step(step(2))
        loggers.log_system(1.0, {"system/x": 1.0})
        loggers.log_system(2.0, {"system/x": 2.0})
        loggers.log_step(step(3))
        loggers.log_step(step(4))
        gated.gate.set()
    assert gated.steps == [1, 2, 3, 4]


async def test_findings_and_measurements_have_the_step_of_the_run() -> None:
    logger = Everything()
    finding = Finding(code="kl", message="m", seconds=1.0, stuck=False)
    async with running(logger) as loggers:
        # There is no run that they could belong to.
        loggers.log_system(1.0, {"system/x": 0.0})
        loggers.start(RUN)
        loggers.log_system(2.0, {"system/x": 1.0})
        loggers.log_step(step(5))
        loggers.log_finding(finding)
        loggers.log_system(3.0, {"system/x": 2.0})
        loggers.finish("done")
        loggers.log_system(4.0, {"system/x": 3.0})
    (_, *seen, _, _) = logger.seen
    assert seen == [
        ("system", 4, {"system/x": 1.0}),
        (5, {"loss": 0.5}),
        ("finding", 5, "kl"),
        ("system", 5, {"system/x": 2.0}),
    ]


async def trained(loggers: MetricsLoggers, *numbers: int) -> None:
    for number in numbers:
        await loggers.reach(number)
        loggers.log_step(step(number))


def segments(logger: Everything) -> list[object]:
    """What a logger saw: segment and resumed step of each start, steps, and reasons of ends."""
    return [
        (each.segment, each.resumed_step) if isinstance(each, LoggedRun) else each[0]
        for each in logger.seen
        if isinstance(each, LoggedRun | tuple)
    ]


async def test_a_run_that_returns_begins_a_segment(tmp_path: Path) -> None:
    file = tmp_path / "logged.json"
    first, second, third = Everything(), Everything(), Everything()
    async with running(first, position_file=file) as loggers:
        loggers.start(RUN)
        await trained(loggers, 5, 6, 7, 6, 7, 8)
    assert segments(first) == [(0, 4), 5, 6, 7, "interrupted", (1, 5), 6, 7, 8]
    async with running(second, position_file=file) as loggers:
        loggers.start(replace(RUN, resumed_step=8))
        await trained(loggers, 9)
        loggers.finish("stopped")
        loggers.start(replace(RUN, resumed_step=9))
        await trained(loggers, 10)
    assert segments(second) == [(1, 8), 9, "stopped", (1, 9), 10]
    async with running(third, position_file=file) as loggers:
        loggers.start(replace(RUN, resumed_step=6))
        await trained(loggers, 7)
        loggers.start(replace(RUN, run_id="another"))
        await trained(loggers, 5)
    assert segments(third) == [(2, 6), 7, (0, 4), 5]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"run_id": "run-1", "step": "x"}'])
async def test_a_damaged_position_begins_anew(tmp_path: Path, text: str) -> None:
    file = tmp_path / "logged.json"
    file.write_text(text, encoding="utf-8")
    logger = Everything()
    async with running(logger, position_file=file) as loggers:
        loggers.start(RUN)
        await trained(loggers, 5)
    assert segments(logger) == [(0, 4), 5]


async def test_a_position_that_cannot_be_written_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logger = Everything()
    async with running(logger, position_file=tmp_path / "missing" / "logged.json") as loggers:
        loggers.start(RUN)
        await trained(loggers, 5, 5)
    assert segments(logger) == [(0, 4), 5, "interrupted", (1, 4), 5]
    assert "cannot note that step 5 is logged" in caplog.text


async def test_a_start_that_raised_is_repeated_before_the_next_record() -> None:
    class Unreachable(Everything):
        tries = 0

        def start(self, run: LoggedRun) -> None:
            self.tries += 1
            if self.tries < 3:
                raise OSError("no route to host")
            super().start(run)

    logger = Unreachable()
    async with running(logger) as loggers:
        loggers.start(RUN)
        for number in (1, 2, 3):
            loggers.log_step(step(number))
        loggers.finish("done")
    assert logger.seen[1:] == [(2, {"loss": 0.5}), (3, {"loss": 0.5}), ("done", ""), "closed"]


async def test_a_run_that_never_started_is_not_finished() -> None:
    logger = Raising("start", OSError("no route to host"))
    async with running(logger) as loggers:
        loggers.start(RUN)
        loggers.log_step(step(1))
        loggers.finish("done")
    assert logger.seen == ["closed"]


async def test_evaluations_between_runs_belong_to_the_next_one() -> None:
    logger, simple = Everything(), Raising("start", KeyError())
    async with running(logger, simple) as loggers:
        loggers.log_evaluation(evaluation("early"))
        loggers.start(RUN)
        loggers.finish("done")
        loggers.log_evaluation(evaluation("late"))
    assert isinstance(logger.seen[0], LoggedRun)
    assert logger.seen[1:] == ["early", ("done", ""), "closed"]


async def test_a_logger_without_a_notion_of_runs_gets_evaluations_between_them() -> None:
    class Evaluating(StepsOnly):
        def log_evaluation(self, evaluation: Evaluation) -> None:
            self.seen.append(evaluation.tag)

    logger = Evaluating()
    async with running(logger) as loggers:
        loggers.log_evaluation(evaluation("early"))
    assert logger.seen == ["early", "closed"]


@pytest.mark.parametrize("error", [KeyError("PROJECT"), SystemExit("PROJECT")], ids=repr)
async def test_a_constructor_that_raises_is_one_line_and_the_rest_is_closed(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> MetricsLogger:
        raise error

    one, other = StepsOnly(), StepsOnly()
    loggers = made(lambda: one, fail, lambda: other)
    with pytest.raises(
        PluginError, match=r"^logger 1 cannot be created: \w+: '?PROJECT'? \("
    ) as raised:
        await loggers.open()
    assert "\n" not in raised.value.message
    assert (one.seen, other.seen) == (["closed"], ["closed"])
    assert caplog.records == []


async def test_a_constructor_that_blocks_is_named(gated: Gated) -> None:
    def block() -> MetricsLogger:
        gated.gate.wait()
        return gated

    one = StepsOnly()
    loggers = made(lambda: one, block, seconds=0.1, close_seconds=0.1)
    with pytest.raises(PluginError, match=r"logger 1 cannot be created: its constructor has not"):
        await loggers.open()
    assert one.seen == ["closed"]
    assert loggers.blocked == ["logger 1"]


def settings_of(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings with the loggers of an ``ajet.toml``."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ajet.toml").write_text(text)
    return Settings(server={"run_dir": tmp_path / "run"})


async def test_a_logger_gets_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of("[loggers.jsonl]\nfile = 'mine.jsonl'\n", tmp_path, monkeypatch)
    loggers = build_service(settings, scripted_plugins()).loggers
    await loggers.open()
    loggers.log_step(step(2))
    await loggers.close()
    assert "loss" in (tmp_path / "run" / "mine.jsonl").read_text()


def test_wrong_settings_of_a_logger_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of("[loggers.jsonl]\nfiel = 'mine.jsonl'\n", tmp_path, monkeypatch)
    with pytest.raises(ConfigError, match="fiel"):
        build_service(settings, scripted_plugins())


def test_the_extra_of_a_logger_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ajet_server.build.is_installed_here", lambda _: False)
    settings = settings_of("[loggers.wandb]\n", tmp_path, monkeypatch)
    with pytest.raises(UnknownComponentError, match=r"pip install 'agentjet\[wandb\]>=0\.1'$"):
        build_service(settings, scripted_plugins())
    settings = settings_of("[loggers.wnadb]\n", tmp_path, monkeypatch)
    with pytest.raises(UnknownComponentError, match="known: "):
        build_service(settings, scripted_plugins())


async def test_the_traceback_of_a_logger_is_logged_as_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(Raising("log", KeyError("project"))) as loggers:
        loggers.start(RUN)
        loggers.log_step(step(1))
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("ajet.server", logging.ERROR)
