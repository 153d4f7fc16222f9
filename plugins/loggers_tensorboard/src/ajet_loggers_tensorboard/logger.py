"""The logger ``tensorboard``."""

from __future__ import annotations

import errno
import io
import itertools
import os
import socket
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.text.summary import text_pb
from tensorboard.summary.writer.record_writer import RecordWriter

from ajet_core.interfaces import LoggedRun, MetricsLogger, WorkerContext
from ajet_core.protocol import Evaluation, Finding
from ajet_loggers.tracking import evaluation_metrics, flat_config
from ajet_loggers_tensorboard.settings import TensorBoardSettings

# TensorBoard reads the files of a folder in the order of their names.
_numbers = itertools.count()


class TensorBoardLogger(MetricsLogger[TensorBoardSettings]):
    """Writes one folder for each run, with an event file for each time that it is continued.

    A run that returns to an earlier step begins a file too. Its first event marks this, and
    TensorBoard leaves out the values of repeated steps that are in the files before.
    """

    def __init__(self, settings: TensorBoardSettings, context: WorkerContext) -> None:
        super().__init__(settings, context)
        self._folder = Path()
        self._file: io.FileIO | None = None
        self._next_step = 0

    def start(self, run: LoggedRun) -> None:
        """Begin an event file."""
        self.close()
        self._folder = self.context.run_dir / self.settings.directory / run.run_id
        self._next_step = run.resumed_step + 1
        known = self._folder.exists()
        self._open()
        if not known:
            lines = [f"{name} = {value}" for name, value in flat_config(run).items()]
            self._write_text("config", "\n".join(lines), run.resumed_step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one step."""
        self._write_scalars(metrics, step, time.time())

    def log_evaluation(self, evaluation: Evaluation) -> None:
        """Write an evaluation."""
        self._write_scalars(evaluation_metrics(evaluation), evaluation.step, time.time())

    def log_finding(self, step: int, finding: Finding) -> None:
        """Write a text with the tag ``findings/CODE``."""
        self._write_text(f"findings/{finding.code}", finding.message, step)

    def log_system(self, at: float, step: int, metrics: Mapping[str, float]) -> None:
        """Write measurements, with their time."""
        self._write_scalars(metrics, step, at)

    def close(self) -> None:
        """Close the file; each record was written at once."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write_scalars(self, metrics: Mapping[str, float], step: int, at: float) -> None:
        values = [Summary.Value(tag=name, simple_value=v) for name, v in metrics.items()]
        self._write(Event(wall_time=at, step=step, summary=Summary(value=values)))

    def _write_text(self, tag: str, text: str, step: int) -> None:
        # TensorBoard renders Markdown: an indented text is shown as it is.
        shown = textwrap.indent(text, "    ", lambda _: True)
        self._write(Event(wall_time=time.time(), step=step, summary=text_pb(tag, shown)))

    def _write(self, event: Event) -> None:
        self._next_step = max(self._next_step, event.step + 1)
        if self._file is None:
            self._open()
        self._append(event)

    def _open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        name = f"{now:017.6f}.{socket.gethostname()}.{os.getpid()}.{next(_numbers):06}"
        self._file = io.FileIO(self._folder / f"events.out.tfevents.{name}", "x")
        self._append(Event(wall_time=now, file_version="brain.Event:2"))
        session = SessionLog(status=SessionLog.SessionStatus.Value("START"))
        self._append(Event(wall_time=now, step=self._next_step, session_log=session))

    def _append(self, event: Event) -> None:
        """Append an event; a file whose last event may be incomplete is given up."""
        record = io.BytesIO()
        RecordWriter(record).write(event.SerializeToString())
        content = record.getvalue()
        try:
            if self._file is None or self._file.write(content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._folder))
        except OSError:
            self.close()
            raise
