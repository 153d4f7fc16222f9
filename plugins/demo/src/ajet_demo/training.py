"""The demo's training phase: runs the client process, and collects reports of client and server."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from agentjet.client import SwarmClient
from agentjet.local import LocalServer
from agentjet.local.processes import Child, child_environment
from ajet_core.errors import AjetError
from ajet_core.protocol import StepSummary
from ajet_demo.display import Display
from ajet_demo.lines import DoneLine, EvalLine, Line, TrainLine, parse_line
from ajet_demo.report import History, Record
from ajet_demo.run_state import RunState

WATCH_SECONDS = 0.25
# Steps are reported before new weights are served, so the last report arrives soon after the
# client's end.
LAST_EVENT_SECONDS = 5.0


class _OutputClosed:
    """The client has closed its output."""


Message = Line | StepSummary | _OutputClosed


def start_client(
    server: LocalServer, run_dir: Path, *, seed: int, target: float, steps: int
) -> Child:
    """Start the client process, which waits for `Training.run`.

    :param seed: seed of the tasks.
    :param target: success at which it stops.
    :param steps: maximum number of steps.
    """
    return Child(
        "client",
        [
            "-m",
            "ajet_demo.client_main",
            "--seed",
            str(seed),
            "--target",
            str(target),
            "--steps",
            str(steps),
        ],
        log=run_dir / "client.log",
        cwd=run_dir,
        environment=child_environment(AJET_TOKEN=server.client_token),
        read=True,
    )


class Training:
    """One session of training.

    :param state: updated and saved during training.
    """

    def __init__(
        self,
        server: LocalServer,
        history: History,
        display: Display,
        state: RunState,
        *,
        run_dir: Path,
        clock: Callable[[], float],
    ) -> None:
        self._server = server
        self._history = history
        self._display = display
        self._state = state
        self._run_dir = run_dir
        self._clock = clock
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._lines: dict[int, TrainLine] = {}
        self._summaries: dict[int, StepSummary] = {}
        self._done: DoneLine | None = None

    def run(self, client: Child) -> DoneLine:
        """Let a client of `start_client` begin, and wait until it ends.

        :raises WorkerError: client or server ended prematurely.
        """
        began = self._clock()
        forward = self._forward_seconds()
        observer = self._server.observer()
        _thread(lambda: self._follow_server(observer))
        client.send(self._server.client.url)
        reader = _thread(lambda: self._follow_client(client))
        self._display.phase("training")
        try:
            self._watch()
            if client.wait() != 0 or self._done is None:
                # A client also fails if its server is gone: report that cause.
                self._server.child.check()
                raise client.exit_report(client.wait())
            self._await_last_step(self._done.step)
            return self._done
        finally:
            self._state.training_seconds += self._clock() - began
            with contextlib.suppress(AjetError):
                # If the server is gone, this is already reported, and its numbers are lost.
                self._server.child.check()
                self._state.rollout_seconds += self._forward_seconds() - forward
            client.end()
            reader.join()

    def _watch(self) -> None:
        while True:
            try:
                message = self._messages.get(timeout=WATCH_SECONDS)
            except queue.Empty:
                self._server.child.check()
                continue
            if isinstance(message, _OutputClosed):
                return
            self._take(message)

    def _await_last_step(self, step: int) -> None:
        deadline = self._clock() + LAST_EVENT_SECONDS
        while step in self._lines and self._clock() < deadline:
            with contextlib.suppress(queue.Empty):
                message = self._messages.get(timeout=WATCH_SECONDS)
                if not isinstance(message, _OutputClosed):
                    self._take(message)

    def _take(self, message: Line | StepSummary) -> None:
        if isinstance(message, DoneLine):
            self._done = message
        elif isinstance(message, EvalLine):
            if message.step == 0 and self._state.success_before is None:
                self._state.success_before = message.success
                self._state.save(self._run_dir)
            self._record(
                Record(
                    kind="eval",
                    step=message.step,
                    success=message.success,
                    reward=message.reward,
                )
            )
        elif isinstance(message, TrainLine):
            self._lines[message.step] = message
            self._join(message.step)
        else:
            self._summaries[message.step] = message
            self._join(message.step)

    def _join(self, step: int) -> None:
        """Record a step when both the client's success and the server's metrics have arrived."""
        if step in self._lines and step in self._summaries:
            line, summary = self._lines.pop(step), self._summaries.pop(step)
            self._record(
                Record(
                    kind="step",
                    step=step,
                    success=line.success,
                    reward=line.reward,
                    metrics=summary.metrics,
                )
            )

    def _record(self, record: Record) -> None:
        self._history.add(record)
        self._display.record(record)

    def _forward_seconds(self) -> float:
        return self._server.client.status().counters.get("engine_forward_seconds", 0.0)

    def _follow_client(self, client: Child) -> None:
        for text in client.lines:
            try:
                self._messages.put(parse_line(text))
            except ValidationError:
                # An incomplete line of a client that was killed.
                continue
        self._messages.put(_OutputClosed())

    def _follow_server(self, observer: SwarmClient) -> None:
        # From the first event on, because a server that resumed a run may already have trained
        # steps.
        with observer, contextlib.suppress(AjetError):
            for event in observer.events(since=0):
                if event.type == "step":
                    self._messages.put(StepSummary.model_validate(event.data))


def _thread(target: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread
