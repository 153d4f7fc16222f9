"""The metrics loggers of a server, which wait for nothing and stop nothing."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from ajet_core.errors import PluginError
from ajet_core.interfaces import EndReason, LoggedRun, MetricsLogger
from ajet_core.protocol import Evaluation, Finding, StepSummary
from ajet_server.observe.logger_thread import LoggerState, LoggerThread
from ajet_server.security.secrets import without_secrets

_log = logging.getLogger("ajet.server")


class MetricsLoggers:
    """All metrics loggers of a server. Its methods are called in the server's event loop.

    :param call_seconds: how long a call may take before it is reported, and a constructor before
        the server is not started.
    :param close_seconds: how long to wait for all loggers at the end of a run and of the server.
    :ivar blocked: the loggers that did not end in time.
    """

    def __init__(
        self,
        threads: Sequence[LoggerThread],
        *,
        call_seconds: float,
        close_seconds: float,
    ) -> None:
        self._threads = threads
        self._call_seconds = call_seconds
        self._close_seconds = close_seconds
        self.blocked: list[str] = []

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
        """Announce a run."""
        config = without_secrets(run.config)
        for thread in self._threads:
            thread.start(replace(run, config=config.model_copy(deep=True)))

    def log_step(self, summary: StepSummary) -> None:
        """Record a finished step."""
        metrics = MappingProxyType(dict(summary.metrics))

        def log(logger: MetricsLogger) -> None:
            logger.log(summary.step, metrics)

        for thread in self._threads:
            thread.record(f"log of step {summary.step}", log)

    def log_evaluation(self, evaluation: Evaluation) -> None:
        """Record an evaluation."""

        def log(logger: MetricsLogger) -> None:
            logger.log_evaluation(evaluation.model_copy(deep=True))

        what = f"log_evaluation of {evaluation.tag!r} at step {evaluation.step}"
        for thread in self._threads:
            thread.record(what, log)

    def finish(self, reason: EndReason, message: str = "") -> None:
        """End the run."""
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
