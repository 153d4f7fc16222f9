"""Mutations of the logger of JSON lines."""

from __future__ import annotations

import sqlite3
import struct
import threading
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from ajet_core.interfaces import EndReason, LoggedRun
from ajet_core.protocol import Evaluation
from ajet_server.embedded import jsonl_logger
from ajet_server.embedded.jsonl_logger import JsonlLogger
from tests.mutants.planting import Mutants, around

Metrics = Mapping[str, float]

lines = Mutants("logger", "tests/embedded/test_jsonl_logger.py::TestJsonl")
ALL = (lines,)


def logs(change: Any) -> None:
    """Change the metrics before they are written."""

    def log(original: Any, self: Any, step: int, metrics: Metrics) -> None:
        original(self, step, change(metrics))

    around(JsonlLogger, "log", log)


@lines
def the_last_step_is_not_written() -> None:
    def log(_: Any, self: Any, step: int, metrics: Metrics) -> None:
        self.__dict__.setdefault("late", []).append((step, metrics))

    def close(original: Any, self: Any) -> None:
        for step, metrics in self.__dict__.get("late", [])[:-1]:
            write(self, step, metrics)
        original(self)

    write = JsonlLogger.log
    around(JsonlLogger, "log", log)
    around(JsonlLogger, "close", close)


@lines
def steps_are_written_when_the_run_is_finished() -> None:
    """As loggers do that write a table at the end: a run that is cut off is lost."""

    def log(_: Any, self: Any, step: int, metrics: Metrics) -> None:
        self.__dict__.setdefault("late", []).append((step, metrics))

    def finish(original: Any, self: Any, reason: EndReason, message: str) -> None:
        for step, metrics in self.__dict__.pop("late", []):
            write(self, step, metrics)
        original(self, reason, message)

    write = JsonlLogger.log
    around(JsonlLogger, "log", log)
    around(JsonlLogger, "finish", finish)


@lines
def metrics_are_changed() -> None:
    def log(original: Any, self: Any, step: int, metrics: Any) -> None:
        try:
            metrics["step"] = float(step)
        except TypeError:
            metrics = dict(metrics)
        original(self, step, metrics)

    around(JsonlLogger, "log", log)


@lines
def a_run_begins_a_new_file() -> None:
    def start(_: Any, self: Any, run: LoggedRun) -> None:
        (self.context.run_dir / self.settings.file).unlink(missing_ok=True)

    around(JsonlLogger, "start", start)


@lines
def a_logger_begins_a_new_file() -> None:
    def opened(original: Any, self: Any) -> Any:
        self._path.unlink(missing_ok=True)
        return original(self)

    around(jsonl_logger._Lines, "_open", opened)


@lines
def the_end_of_the_first_run_ends_the_logger() -> None:
    def log(original: Any, self: Any, step: int, metrics: Metrics) -> None:
        if not self.__dict__.get("over"):
            original(self, step, metrics)

    def finish(original: Any, self: Any, reason: EndReason, message: str) -> None:
        self.over = True

    around(JsonlLogger, "log", log)
    around(JsonlLogger, "finish", finish)


@lines
def a_run_that_failed_raises() -> None:
    def finish(original: Any, self: Any, reason: EndReason, message: str) -> None:
        if message:
            raise RuntimeError(message)

    around(JsonlLogger, "finish", finish)


@lines
def a_run_that_was_interrupted_is_none() -> None:
    def finish(original: Any, self: Any, reason: EndReason, message: str) -> None:
        {"done": 0, "stopped": 0, "failed": 1}[reason]

    around(JsonlLogger, "finish", finish)


@lines
def a_logger_without_steps_cannot_be_closed() -> None:
    def close(original: Any, self: Any) -> None:
        assert self._steps._file is not None
        original(self)

    around(JsonlLogger, "close", close)


@lines
def numbers_have_four_digits() -> None:
    logs(lambda metrics: {name: round(value, 4) for name, value in metrics.items()})


@lines
def numbers_are_those_of_half_precision() -> None:
    def narrow(value: float) -> float:
        return float(struct.unpack("e", struct.pack("e", max(-6e4, min(6e4, value))))[0])

    logs(lambda metrics: {name: narrow(value) for name, value in metrics.items()})


@lines
def the_columns_are_those_of_the_first_step() -> None:
    def log(original: Any, self: Any, step: int, metrics: Metrics) -> None:
        columns = self.__dict__.setdefault("columns", list(metrics))
        original(self, step, {name: metrics[name] for name in columns if name in metrics})

    around(JsonlLogger, "log", log)


@lines
def names_are_plain() -> None:
    logs(lambda m: {n.encode("ascii", "ignore").decode(): value for n, value in m.items()})


@lines
def long_names_are_cut() -> None:
    logs(lambda metrics: {name[:64]: value for name, value in metrics.items()})


@lines
def steps_are_counted() -> None:
    """As a tracker does whose step is the number of the call."""

    def log(original: Any, self: Any, step: int, metrics: Metrics) -> None:
        self.count = self.__dict__.get("count", 0) + 1
        original(self, self.count, metrics)

    around(JsonlLogger, "log", log)


@lines
def a_step_that_was_seen_is_not_written_again() -> None:
    def log(original: Any, self: Any, step: int, metrics: Metrics) -> None:
        text = self.context.run_dir / self.settings.file
        if not text.exists() or f'{{"step": {step},' not in text.read_text():
            original(self, step, metrics)

    around(JsonlLogger, "log", log)


@lines
def a_thread_outlives_the_logger() -> None:
    gate = threading.Event()

    def log(original: Any, self: Any, step: int, metrics: Metrics) -> None:
        thread = threading.Thread(target=gate.wait, args=(60,))
        thread.start()
        original(self, step, metrics)

    around(JsonlLogger, "log", log)


@lines
def a_file_is_written_to_the_working_directory() -> None:
    def log(original: Any, self: Any, step: int, metrics: Metrics) -> None:
        Path("stray.txt").touch()
        original(self, step, metrics)

    around(JsonlLogger, "log", log)


@lines
def a_file_is_written_beside_the_run_directory() -> None:
    def log(original: Any, self: Any, step: int, metrics: Metrics) -> None:
        (self.context.run_dir.parent / "stray.txt").write_text("a line")
        original(self, step, metrics)

    around(JsonlLogger, "log", log)


@lines
def a_database_is_written_beside_the_run_directory() -> None:
    def log(original: Any, self: Any, step: int, metrics: Metrics) -> None:
        with closing(sqlite3.connect(self.context.run_dir.parent / "stray.db")) as database:
            database.execute("create table if not exists steps (step)")
        original(self, step, metrics)

    around(JsonlLogger, "log", log)


@lines
def the_first_scores_of_an_evaluation_remain() -> None:
    def log(original: Any, self: Any, evaluation: Evaluation) -> None:
        if not self.__dict__.get("seen"):
            original(self, evaluation)
        self.seen = True

    around(JsonlLogger, "log_evaluation", log)


@lines
def an_evaluation_without_a_mean_raises() -> None:
    def log(original: Any, self: Any, evaluation: Evaluation) -> None:
        mean: Any = evaluation.reward_mean
        original(self, evaluation.model_copy(update={"reward_mean": round(mean, 3)}))

    around(JsonlLogger, "log_evaluation", log)


@lines
def evaluations_belong_to_the_latest_step() -> None:
    def log(original: Any, self: Any, evaluation: Evaluation) -> None:
        original(self, evaluation.model_copy(update={"step": 0}))

    around(JsonlLogger, "log_evaluation", log)


@lines
def the_run_directory_is_fixed_at_the_import() -> None:
    """As trackers do that keep one session for a process."""
    first: list[Any] = []

    def make(original: Any, self: Any, settings: Any, context: Any) -> None:
        first.append(context)
        original(self, settings, first[0])

    around(JsonlLogger, "__init__", make)


@lines
def a_logger_is_closed_once() -> None:
    """The next logger of the process has nothing to write to."""
    closed: list[bool] = []

    def close(original: Any, self: Any) -> None:
        closed.append(True)
        original(self)

    def log(original: Any, self: Any, step: int, metrics: Metrics) -> None:
        if not closed:
            original(self, step, metrics)

    around(JsonlLogger, "close", close)
    around(JsonlLogger, "log", log)
