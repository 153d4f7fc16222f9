"""Child processes with a log that end with this process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Self

from ajet_core.errors import WorkerError

__all__ = ["Child", "child_environment", "end_with_parent"]

_GRACE_SECONDS = 15.0
_SHOWN_LINES = 20


class Child:
    """A child process whose standard error (and output, if it is not read) goes to a log file.

    It has a separate process group: Ctrl-C only reaches the parent, which ends its children in the
    right order. Its standard input is a pipe that ends with this process, so that it can end too
    (`agentjet.local.lifeline`). Leaving a ``with`` block ends it.

    :param name: name in errors.
    :param arguments: arguments for this Python interpreter.
    :param read: whether the parent reads its standard output, as lines of text from `lines`.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        log: Path,
        cwd: Path,
        environment: Mapping[str, str],
        read: bool = False,
    ) -> None:
        self.name = name
        self._log = log
        with log.open("ab") as file:
            self._log_start = file.tell()
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if read else file,
                stderr=file,
                cwd=cwd,
                env=dict(environment),
                start_new_session=True,
                text=True,
                encoding="utf-8",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def lines(self) -> IO[str]:
        """The standard output, if it is read."""
        assert self._process.stdout is not None, f"cannot read the output of the {self.name}"
        return self._process.stdout

    def send(self, line: str) -> None:
        """Write a line to its standard input; no effect if it has ended."""
        assert self._process.stdin is not None, f"cannot write to the {self.name}"
        # Not through the buffer, which would keep a line that could not be written.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._process.stdin.fileno(), f"{line}\n".encode())

    def poll(self) -> int | None:
        """Return the exit status, or None while it runs."""
        return self._process.poll()

    def wait(self) -> int:
        """Wait for the end and return the exit status."""
        return self._process.wait()

    def check(self) -> None:
        """:raises WorkerError: the process has ended; the message shows the end of its log."""
        status = self.poll()
        if status is not None:
            raise self.exit_report(status)

    def exit_report(self, status: int) -> WorkerError:
        """Return an error with the exit status and the last lines of the log."""
        how = (
            f"was killed by {signal.Signals(-status).name}"
            if status < 0
            else f"ended with exit status {status}"
        )
        return WorkerError(f"the {self.name} {how}; its last lines:\n{self.tail()}")

    def tail(self) -> str:
        """Return the last lines of the log."""
        with self._log.open("rb") as file:
            file.seek(self._log_start)
            lines = file.read().decode("utf-8", "replace").splitlines()
        shown = "\n".join(f"  {line}" for line in lines[-_SHOWN_LINES:])
        return f"{shown or '  (nothing)'}\n(all of it: {self._log})"

    def end(self, grace: float = _GRACE_SECONDS) -> None:
        """Terminate the process, and kill it if it does not end in time."""
        if self.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(grace)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                # A line that it did not read is written again.
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def child_environment(**extra: str) -> dict[str, str]:
    """Return this process's environment without agentjet's settings, plus `extra`.

    A local server must not depend on the user's other servers; `LocalServer` passes on what else
    they set.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith("AJET_")}
    return kept | extra


def end_with_parent() -> Future[str]:
    """From now on, end this process by SIGTERM when its standard input ends.

    :return: the first line that the parent sends.
    """
    first: Future[str] = Future()

    def wait() -> None:
        text = b""
        # Not `sys.stdin.readline`, in which a thread may not be while the interpreter ends.
        while received := os.read(sys.stdin.fileno(), 1024):
            text += received
            if not first.done() and b"\n" in text:
                first.set_result(text.partition(b"\n")[0].decode())
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="ajet-lifeline", daemon=True).start()
    return first
