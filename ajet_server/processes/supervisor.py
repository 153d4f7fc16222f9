"""Fork the processes of a server, and replace those that end."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ajet_core.errors import AjetError, ConfigError, error_from_payload
from ajet_server.processes.mailbox import make_mailboxes
from ajet_server.processes.places import SERVER

_log = logging.getLogger("ajet.server")

SUPPORTED = sys.platform == "linux"
"""Whether a server can have several processes; passing connections on requires Linux."""

# A process that ends within this time is replaced later each time, up to the maximum.
_SHORT_LIFE_SECONDS = 10.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 5.0
# How often to look for ended processes while replacements are due, or after an unrelated child has
# ended.
_LOOK_SECONDS = 0.02
# Longer than a process takes to end its connections, its workers and its store.
_END_SECONDS = 35
# A report fits into the buffer of a pipe, in whatever characters it is.
_REPORT_CHARACTERS = 4096


@dataclass(frozen=True, slots=True)
class ProcessPlace:
    """The place of a process in its server.

    :param number: 0 for the server process, from 1 on for gateway processes.
    :param mailbox: the receiving end of its mailbox.
    :param mailboxes: the sending ends of all.
    :param parent_alive: reads as ended when the process that forked this one has ended.
    """

    number: int
    gateways: int
    mailbox: socket.socket
    mailboxes: tuple[socket.socket, ...]
    parent_alive: int


def supervise(
    gateways: int, work: Callable[[ProcessPlace], None], logger_seconds: float = 0.0
) -> None:
    """Run a server process and its gateway processes until SIGINT or SIGTERM.

    This process only forks: it has no threads and no event loop, so that the others can be forked
    again at any time.

    :param work: runs a process until it gets SIGTERM.
    :param logger_seconds: how long the server process may wait for its metrics loggers.
    :raises AjetError: a process has reported an error.
    """
    if not SUPPORTED:
        raise ConfigError(
            "several processes are supported on Linux only: set server.processes to 1",
            param="server.processes",
        )
    mailboxes = make_mailboxes(gateways + 1)
    alive, held = os.pipe()
    ends = tuple(end for _, end in mailboxes)

    def place(number: int) -> ProcessPlace:
        return ProcessPlace(number, gateways, mailboxes[number][0], ends, alive)

    end_seconds = _END_SECONDS + math.ceil(logger_seconds)
    with _Children(lambda number: work(place(number)), held, end_seconds) as children:
        for number in range(gateways + 1):
            children.start(number)
        children.replace_until_stopped()


class _Children:
    """The processes by place.

    :param work: runs the process of a place.
    :param held: a descriptor that no child may hold.
    :param end_seconds: time after which children that do not end are killed.
    """

    def __init__(self, work: Callable[[int], None], held: int, end_seconds: int) -> None:
        self._work = work
        self._held = held
        self._end_seconds = end_seconds
        self._pids: dict[int, int] = {}
        self._reports: dict[int, int] = {}
        self._began: dict[int, float] = {}
        self._pause: dict[int, float] = {}
        self._stopping = False

    def __enter__(self) -> _Children:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGALRM, self._kill)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._end()
        signal.alarm(0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)

    def start(self, number: int) -> None:
        """Fork the process of a place."""
        reports, report = os.pipe()
        # A signal between the fork and the new handlers must reach the child, too.
        with _signals_blocked():
            pid = os.fork()
            if pid == 0:
                self._be_child(number, report)
        os.close(report)
        if (former := self._reports.pop(number, None)) is not None:
            os.close(former)
        self._pids[number], self._reports[number] = pid, reports
        self._began[number] = time.monotonic()

    def replace_until_stopped(self) -> None:
        """Start processes again that end.

        :raises AjetError: a process has reported an error.
        """
        due: dict[int, float] = {}
        while not self._is_stopping():
            for number in [n for n, at in due.items() if at <= time.monotonic()]:
                del due[number]
                self.start(number)
            try:
                pid, status = os.waitpid(-1, os.WNOHANG if due else 0)
            except ChildProcessError:
                # All wait to be replaced.
                pid, status = 0, 0
            ended = [number for number, of in self._pids.items() if of == pid]
            if not ended:
                time.sleep(_LOOK_SECONDS)
                continue
            (number,) = ended
            del self._pids[number]
            self._raise_report(number)
            code, pause = os.waitstatus_to_exitcode(status), self._pause_of(number)
            if code and not self._is_stopping():
                how = f"exit status {code}" if code > 0 else signal.Signals(-code).name
                _log.warning(
                    "%s (pid %d) ended (%s) and is replaced", process_name(number), pid, how
                )
            due[number] = time.monotonic() + (pause if code else 0.0)

    def _is_stopping(self) -> bool:
        """Whether a signal has arrived; it may at any time."""
        return self._stopping

    def _pause_of(self, number: int) -> float:
        if time.monotonic() - self._began[number] > _SHORT_LIFE_SECONDS:
            self._pause[number] = _FIRST_PAUSE_SECONDS
        pause = self._pause.get(number, _FIRST_PAUSE_SECONDS)
        self._pause[number] = min(_LONGEST_PAUSE_SECONDS, 2 * pause)
        return pause

    def _raise_report(self, number: int) -> None:
        """Raise the error that a process has reported, if any."""
        os.set_blocking(self._reports[number], False)
        with contextlib.suppress(BlockingIOError):
            if text := os.read(self._reports[number], 1 << 16):
                raise error_from_payload(json.loads(text))

    def _be_child(self, number: int, report: int) -> None:
        code = 1
        try:
            for handled in (signal.SIGTERM, signal.SIGINT):
                signal.signal(handled, signal.SIG_DFL)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            # Ctrl-C in a terminal reaches all processes, but the parent ends the others.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
            os.close(self._held)
            self._work(number)
            code = 0
        except AjetError as error:
            payload = error.to_payload() | {"message": error.message[:_REPORT_CHARACTERS]}
            os.write(report, json.dumps(payload).encode())
        except BaseException:  # noqa: BLE001 - the process must not continue as its parent would
            _log.exception("%s failed", process_name(number))
        finally:
            logging.shutdown()
            os._exit(code)

    def _stop(self, *_: object) -> None:
        if not self._stopping:
            signal.alarm(self._end_seconds)
        self._stopping = True
        # The server process ends first: gateway processes still record calls with it.
        if (server := self._pids.get(SERVER)) is not None:
            _signal(server, signal.SIGTERM)
        else:
            self._end_gateways()

    def _end_gateways(self) -> None:
        for number, pid in self._pids.items():
            if number != SERVER:
                _signal(pid, signal.SIGTERM)

    def _end(self) -> None:
        """End all processes, the server's first."""
        for numbers in ([SERVER], [number for number in self._pids if number != SERVER]):
            pids = [self._pids[number] for number in numbers if number in self._pids]
            for pid in pids:
                _signal(pid, signal.SIGTERM)
            for pid in pids:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)
        self._pids.clear()

    def _kill(self, *_: object) -> None:
        """Kill the processes that have not ended in time."""
        names = ", ".join(map(process_name, self._pids))
        _log.warning("killing processes that did not end within %d s: %s", self._end_seconds, names)
        for pid in self._pids.values():
            _signal(pid, signal.SIGKILL)


def process_name(number: int) -> str:
    """Return the name of a process by its place."""
    return "the server process" if number == SERVER else f"gateway process {number}"


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    handled = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, handled)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
