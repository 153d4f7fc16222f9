"""A metrics logger on a thread of its own, so that neither training nor a shutdown waits for it."""

from __future__ import annotations

import logging
import threading
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ajet_core.errors import AjetError, PluginError
from ajet_core.interfaces import EndReason, LoggedRun, MetricsLogger

_log = logging.getLogger("ajet.server")

LoggerCall = Callable[[MetricsLogger], None]


@dataclass(frozen=True, slots=True)
class _Record:
    what: str
    call: LoggerCall
    minor: bool


@dataclass(frozen=True, slots=True)
class _Finish:
    reason: EndReason
    message: str


@dataclass(frozen=True, slots=True)
class LoggerState:
    """What a logger is doing.

    :param doing: the call that it has not returned from; "" if there is none.
    :param seconds: how long that call has taken.
    :param waiting: records in its queue.
    :param dropped: records of this run that the queue had no room for.
    :param lost: records of this run during which it raised.
    :param error: why the last call failed; "" if it did not.
    :param failing: seconds since calls have failed.
    """

    doing: str
    seconds: float
    waiting: int
    dropped: int
    lost: int
    error: str
    failing: float


class LoggerThread:
    """Creates and calls one metrics logger; the methods of this class never wait for it.

    The thread is a daemon: the process can end while the logger is blocked.

    :param label: names the logger with its plugin and distribution, for messages.
    :param make: creates the logger.
    :param limit: maximum number of records that wait; the oldest are dropped, minor ones first.
    :param clock: seconds, monotonic.
    """

    def __init__(
        self,
        label: str,
        make: Callable[[], MetricsLogger],
        *,
        limit: int,
        clock: Callable[[], float],
    ) -> None:
        self.label = label
        self._make = make
        self._limit = limit
        self._clock = clock
        self._changed = threading.Condition()
        # The lock of the condition guards everything that follows, up to the blank line.
        self._queue: deque[LoggedRun | _Record | _Finish] = deque()
        self._records = 0
        self._doing, self._since, self._reported = "", 0.0, False
        self._dropped, self._lost = 0, 0
        self._error, self._failing_since = "", 0.0
        self._closing = False
        self._created = False
        self._refusal: PluginError | None = None

        # What follows belongs to the thread.
        self._run: LoggedRun | None = None
        self._begun = False
        self._held: deque[_Record] = deque(maxlen=limit)
        self._traced = ""
        self._thread = threading.Thread(target=self._work, name=label, daemon=True)

    def open(self) -> None:
        """Start the thread, which creates the logger."""
        self._thread.start()

    def created(self, seconds: float) -> None:
        """Wait until the logger has been created.

        :param seconds: the longest time to wait.
        :raises PluginError: it raised, or takes longer.
        """
        with self._changed:
            over = self._changed.wait_for(
                lambda: self._created or self._refusal is not None, seconds
            )
            if self._refusal is not None:
                raise self._refusal
        if not over:
            raise PluginError(
                f"{self.label} cannot be created: its constructor has not returned after "
                f"{seconds:g} s (setting server.logger_seconds); a logger should connect to other "
                "machines in `start`"
            )

    def start(self, run: LoggedRun) -> None:
        """Queue the start of a run."""
        with self._changed:
            self._dropped = self._lost = 0
            self._put(run)

    def record(self, what: str, call: LoggerCall, *, minor: bool = False) -> None:
        """Queue a record; if the queue is full, drop the oldest minor one, or else the oldest.

        :param what: the call, for messages.
        :param minor: other records are worth more.
        """
        with self._changed:
            if self._records >= self._limit:
                self._drop()
            self._records += 1
            self._put(_Record(what, call, minor))

    def finish(self, reason: EndReason, message: str) -> None:
        """Queue the end of a run."""
        with self._changed:
            self._put(_Finish(reason, message))

    def close(self) -> None:
        """Close the logger after it has processed its queue."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def settled(self, seconds: float) -> bool:
        """Wait until the queue has been processed; return False if that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._queue or self._doing), seconds)

    def ended(self, seconds: float) -> bool:
        """Wait until the logger has been closed; return False if that takes longer."""
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def state(self) -> LoggerState:
        """Return what the logger is doing."""
        with self._changed:
            now = self._clock()
            return LoggerState(
                self._doing,
                now - self._since if self._doing else 0.0,
                self._records,
                self._dropped,
                self._lost,
                self._error,
                now - self._failing_since if self._error else 0.0,
            )

    def report(self, seconds: float) -> None:
        """Log the present call, once, if it has taken longer than `seconds`."""
        with self._changed:
            taken = self._clock() - self._since
            if not self._doing or self._reported or taken < seconds:
                return
            self._reported = True
            doing, waiting = self._doing, self._records
        _log.warning(
            "%s: %s has taken %.0f s; training continues; waiting records: %d",
            self.label,
            doing,
            taken,
            waiting,
        )

    def _put(self, order: LoggedRun | _Record | _Finish) -> None:
        self._queue.append(order)
        self._changed.notify_all()

    def _drop(self) -> None:
        # Starts and ends of runs are kept.
        records = [order for order in self._queue if isinstance(order, _Record)]
        oldest = next((record for record in records if record.minor), records[0])
        self._queue.remove(oldest)
        self._records -= 1
        self._dropped += 1
        if self._dropped == 1:
            _log.error(
                "%s: its queue of %d records is full (setting server.logger_queue), so the oldest "
                "are dropped, first %s; the present call is %s",
                self.label,
                self._limit,
                oldest.what,
                self._doing or "over",
            )

    def _work(self) -> None:
        logger = self._create()
        if logger is None:
            return
        while (order := self._next()) is not None:
            self._process(logger, order)
        self._call("close", logger.close)

    def _create(self) -> MetricsLogger | None:
        with self._changed:
            self._doing, self._since = "its constructor", self._clock()
        try:
            logger = self._make()
        # On this thread, even SystemExit would only end the logger, without a word.
        except BaseException as error:  # noqa: BLE001 - a plugin may raise anything
            refusal = (
                error
                if isinstance(error, PluginError)
                else PluginError(f"{self.label} cannot be created: {described(error)}")
            )
            with self._changed:
                self._refusal = refusal
                self._changed.notify_all()
            return None
        with self._changed:
            self._created, self._doing = True, ""
            self._changed.notify_all()
        return logger

    def _next(self) -> LoggedRun | _Record | _Finish | None:
        """Wait for the next order; None if the logger is to be closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing)
            if not self._queue:
                return None
            order = self._queue.popleft()
            if isinstance(order, _Record):
                self._records -= 1
            # Until the order is over, the queue is not settled.
            self._doing, self._since = "processing its queue", self._clock()
            return order

    def _process(self, logger: MetricsLogger, order: LoggedRun | _Record | _Finish) -> None:
        try:
            if isinstance(order, LoggedRun):
                self._run = order
                self._begin(logger, order)
            elif isinstance(order, _Finish):
                if self._begun:
                    finish = f"finish ({order.reason})"
                    self._call(finish, lambda: logger.finish(order.reason, order.message))
                self._run, self._begun = None, False
            elif self._run is None and type(logger).start is not MetricsLogger.start:
                # An evaluation between two runs.
                self._held.append(order)
            elif self._run is None or self._begun or self._begin(logger, self._run):
                self._record(logger, order)
            else:
                self._lose()
        finally:
            with self._changed:
                self._doing = ""
                self._changed.notify_all()

    def _begin(self, logger: MetricsLogger, run: LoggedRun) -> bool:
        self._begun = self._call(f"start of run {run.run_id}", lambda: logger.start(run))
        while self._begun and self._held:
            self._record(logger, self._held.popleft())
        return self._begun

    def _record(self, logger: MetricsLogger, record: _Record) -> None:
        if not self._call(record.what, lambda: record.call(logger)):
            self._lose()

    def _lose(self) -> None:
        with self._changed:
            self._lost += 1

    def _call(self, what: str, call: Callable[[], None]) -> bool:
        """Call the logger.

        :return: whether it returned without an exception.
        """
        with self._changed:
            self._doing, self._since, self._reported = what, self._clock(), False
        try:
            call()
        # The step or evaluation is already recorded, and other loggers must not be affected.
        except BaseException as error:  # noqa: BLE001 - a plugin may raise anything
            self._note_failure(what, error)
            return False
        finally:
            with self._changed:
                taken, reported = self._clock() - self._since, self._reported
            if reported:
                _log.warning("%s: %s returned after %.0f s", self.label, what, taken)
        with self._changed:
            self._error = ""
        return True

    def _note_failure(self, what: str, error: BaseException) -> None:
        text = described(error)
        with self._changed:
            if not self._error:
                self._failing_since = self._clock()
            self._error = f"{what} failed: {text}"
        # An error of every step would fill the log with the same traceback.
        origin = f"{type(error).__name__} {_origin(error)}"
        trace = None if isinstance(error, AjetError) or origin == self._traced else error
        self._traced = origin
        _log.error("%s: %s failed: %s", self.label, what, text, exc_info=trace)


def described(error: BaseException) -> str:
    """Return what a plugin raised, and where, in one line."""
    if isinstance(error, AjetError):
        return error.message
    return " ".join(f"{type(error).__name__}: {error} ({_origin(error)})".split())


def _origin(error: BaseException) -> str:
    """Return the file and line that raised an exception."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "origin unknown"
