"""The demo's child processes: started, watched, and ended by their process ids."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from ajet_core.errors import WorkerError

GRACE_SECONDS = 15.0
SHOWN_LINES = 20


class Child:
    """One child process whose standard error (and output, if it is not read) goes to a log file.

    It gets a process group of its own: Ctrl-C reaches the parent alone, which ends its children in the
    right order.

    :param name: what it is called in errors.
    :param arguments: of this Python interpreter.
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
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if read else file,
                stderr=file,
                cwd=cwd,
                env=dict(environment),
                start_new_session=True,
                text=True,
                encoding="utf-8",
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def lines(self) -> IO[str]:
        """Its standard output, if it is read."""
        assert self._process.stdout is not None, f"the output of the {self.name} is not read"
        return self._process.stdout

    def poll(self) -> int | None:
        """Its exit status, or None while it runs."""
        return self._process.poll()

    def wait(self) -> int:
        """Its exit status, once it has ended."""
        return self._process.wait()

    def check(self) -> None:
        """:raises WorkerError: it has ended; the message shows the end of its log."""
        status = self.poll()
        if status is not None:
            raise self.exit_report(status)

    def exit_report(self, status: int) -> WorkerError:
        """An error that says how it ended, with the last lines of its log."""
        how = (
            f"was killed by {signal.Signals(-status).name}"
            if status < 0
            else f"ended with exit status {status}"
        )
        return WorkerError(f"the demo's {self.name} {how}; its last lines:\n{self.tail()}")

    def tail(self) -> str:
        """The last lines it wrote to its log."""
        with self._log.open("rb") as file:
            file.seek(self._log_start)
            lines = file.read().decode("utf-8", "replace").splitlines()
        shown = "\n".join(f"  {line}" for line in lines[-SHOWN_LINES:])
        return f"{shown or '  (nothing)'}\n(all of it: {self._log})"

    def end(self, grace: float = GRACE_SECONDS) -> None:
        """Ask it to end, wait, and kill it if it does not."""
        if self.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(grace)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def child_environment(**extra: str) -> dict[str, str]:
    """The environment of this process without settings of agentjet, plus `extra`.

    The demo shall do the same whatever servers the user has configured.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith("AJET_")}
    return kept | extra
