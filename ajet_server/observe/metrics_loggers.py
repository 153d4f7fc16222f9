"""The metrics loggers of a server, which wait for nothing and stop nothing."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from ajet_core.errors import PluginError
from ajet_core.interfaces import EndReason, LoggedRun, MetricsLogger
from ajet_core.protocol import Evaluation, Finding, StepSummary
from ajet_server.observe.logger_thread import LoggerCall, LoggerState, LoggerThread
from ajet_server.observe.run_position import RunPosition
from ajet_server.security.secrets import without_secrets

_log = logging.getLogger("ajet.server")


class MetricsLoggers:
    """All metrics loggers of a server. Its methods are called in the server's event loop.

    :param position_file: where the last step that was logged is kept.
    :param call_seconds: how long a call may take before it is reported, and a constructor before
        the server is not started.
    :param close_seconds: how long to wait for all loggers at the end of a run and of the server.
    :ivar blocked: the loggers that did not end in time.
    """

    def __init__(
        self,
        threads: Sequence[LoggerThread],
        *,
        position_file: Path,
        call_seconds: float,
        close_seconds: float,
    ) -> None:
        self._threads = threads
        self._call_seconds = call_seconds
        self._close_seconds = close_seconds
        self.blocked: list[str] = []
        self._position = RunPosition(position_file)
        # The present run, as it was announced last.
        self._run: LoggedRun | None = None
        self._step = 0

    async def open(self) -> None:
        """Create the loggers.

        :raises PluginError: one of them cannot be created; the others are closed again.
        """
        for thread in self._threads:
            thread.open()
        refusals: list[PluginError] = []
        until = time.monotonic() + self._call_seconds
        for thread in self._threads:
            try:
                await asyncio.to_thread(thread.created, max(0.0, until - time.monotonic()))
            except PluginError as error:
                refusals.append(error)
        if refusals:
            await self.close()
            raise PluginError("; ".join(refusal.message for refusal in refusals))

    def start(self, run: LoggedRun) -> None:
        """Announce a run; it continues the one with the same id that was logged last."""
        segment = self._position.begin(run.run_id, run.resumed_step)
        self._announce(replace(run, config=without_secrets(run.config), segment=segment))

    async def reach(self, step: int) -> None:
        """Note a step before it is logged, so that it is known, later too, if it is repeated."""
        self._position.reach(step)
        try:
            await asyncio.to_thread(self._position.save)
        except OSError as error:
            _log.error(
                "cannot note that step %d is logged, so loggers may record it twice if the run "
                "continues from an earlier step: %s",
                step,
                error,
            )

    def log_step(self, summary: StepSummary) -> None:
        """Record a finished step."""
        metrics = MappingProxyType(dict(summary.metrics))
        if self._run is not None and self._run.segment != self._position.segment:
            # As if the server had been started again.
            for thread in self._threads:
                thread.finish("interrupted", "")
            returned = replace(
                self._run, resumed_step=summary.step - 1, segment=self._position.segment
            )
            self._announce(returned)
        self._step = summary.step
        self._record(f"log of step {summary.step}", lambda each: each.log(summary.step, metrics))

    def log_finding(self, finding: Finding) -> None:
        """Record a finding that has begun."""
        step = self._step

        def log(logger: MetricsLogger) -> None:
            logger.log_finding(step, finding.model_copy(deep=True))

        self._record(f"log_finding of {finding.code!r}", log)

    def log_system(self, at: float, metrics: Mapping[str, float]) -> None:
        """Record measurements of the machine if there is a run; may be called by any thread."""
        step, shown = self._step, MappingProxyType(dict(metrics))
        if self._run is not None:
            self._record("log_system", lambda each: each.log_system(at, step, shown), minor=True)

    def log_evaluation(self, evaluation: Evaluation) -> None:
        """Record an evaluation."""

        def log(logger: MetricsLogger) -> None:
            logger.log_evaluation(evaluation.model_copy(deep=True))

        self._record(f"log_evaluation of {evaluation.tag!r} at step {evaluation.step}", log)

    def finish(self, reason: EndReason, message: str = "") -> None:
        """End the run."""
        self._run = None
        for thread in self._threads:
            thread.finish(reason, message)

    async def settled(self) -> None:
        """Wait until the loggers have processed their queues, but not for blocked ones."""
        working = [t for t in self._threads if t.state().seconds < self._call_seconds]
        await self._all_are(LoggerThread.settled, working)

    async def close(self) -> None:
        """Close the loggers, and log which do not end in time."""
        for thread in self._threads:
            thread.close()
        for thread in await self._all_are(LoggerThread.ended, self._threads):
            state = thread.state()
            self.blocked.append(thread.label)
            _log.error(
                "%s has not ended after %g s (setting server.logger_close_seconds): %s has taken "
                "%.0f s; records not logged: %d",
                thread.label,
                self._close_seconds,
                state.doing,
                state.seconds,
                state.waiting,
            )

    def report(self) -> None:
        """Log calls that take long."""
        for thread in self._threads:
            thread.report(self._call_seconds)

    def findings(self) -> list[Finding]:
        """Return what the operator should know about the loggers."""
        states = [(thread.label, thread.state()) for thread in self._threads]
        behind = [
            (_behind(label, state), state.seconds)
            for label, state in states
            if state.dropped or (state.doing and state.seconds >= self._call_seconds)
        ]
        failed = [(_failed(label, state), state.failing) for label, state in states if state.error]
        return [
            Finding(
                code=code,
                message="; ".join(text for text, _ in causes),
                seconds=round(max(seconds for _, seconds in causes), 3),
                stuck=False,
            )
            for code, causes in (("logger_behind", behind), ("logger_failed", failed))
            if causes
        ]

    def _announce(self, run: LoggedRun) -> None:
        self._run, self._step = run, run.resumed_step
        for thread in self._threads:
            thread.start(replace(run, config=run.config.model_copy(deep=True)))

    def _record(self, what: str, call: LoggerCall, *, minor: bool = False) -> None:
        for thread in self._threads:
            thread.record(what, call, minor=minor)

    async def _all_are(
        self, state: Callable[[LoggerThread, float], bool], threads: Sequence[LoggerThread]
    ) -> list[LoggerThread]:
        """Wait until all threads are in a state; return those that are not in time."""
        until = time.monotonic() + self._close_seconds
        return [
            thread
            for thread in threads
            if not await asyncio.to_thread(
                partial(state, thread, max(0.0, until - time.monotonic()))
            )
        ]


def _behind(label: str, state: LoggerState) -> str:
    text = f"{label}: "
    if state.doing:
        text += f"{state.doing} has taken {state.seconds:.0f} s; "
    text += f"waiting records: {state.waiting}"
    if state.dropped:
        text += f"; dropped: {state.dropped} (setting server.logger_queue)"
    return text


def _failed(label: str, state: LoggerState) -> str:
    return f"{label}: {state.error}; records of this run that are lost: {state.lost}"
