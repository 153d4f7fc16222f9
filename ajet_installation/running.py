"""Execution of installers and other programs, with their output in a log."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ajet_core.errors import BackendEnvironmentError

_TAIL_LINES = 12
# With these, pip would install elsewhere or consider packages of this process as installed.
_UNWANTED = frozenset({"PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER"})
_CAUSES = (
    (("No space left on device", "Disk quota exceeded"), "the disk is full"),
    (
        (
            "Temporary failure in name resolution",
            "Name or service not known",
            "Failed to establish a new connection",
            "NewConnectionError",
            "Network is unreachable",
            "ConnectTimeout",
            "error sending request for url",
        ),
        "cannot reach a package index: check the network and the output of `pip config list`",
    ),
    (
        ("No module named ensurepip", "ensurepip is not available"),
        "this Python cannot create environments",
    ),
)


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs programs with their output in a log.

    :param say: called with each line of output.
    :param descriptor: the open lock; programs inherit it, so that it is held as long as one of them
        runs, even if this process is killed.
    """

    log: Path
    say: Callable[[str], None]
    descriptor: int

    def run(
        self, what: str, command: Sequence[str], variables: Mapping[str, str] | None = None
    ) -> None:
        """Run a program and wait for its end.

        :param what: description for the error.
        :raises BackendEnvironmentError: it failed; the message has the cause, if known, and the
            last lines.
        """
        kept = {name: value for name, value in os.environ.items() if name not in _UNWANTED}
        try:
            with self.log.open("a", encoding="utf-8") as log:
                log.write(f"$ {' '.join(command)}\n")
                lines = self._output(command, {**kept, **(variables or {})}, log.write)
        except OSError as error:
            raise BackendEnvironmentError(f"{what} failed: {error}") from error
        if lines is not None:
            raise BackendEnvironmentError(_failure(what, lines, self.log))

    def _output(
        self, command: Sequence[str], environ: Mapping[str, str], write: Callable[[str], object]
    ) -> list[str] | None:
        """Return the lines of a program that failed, else None."""
        process = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environ,
            pass_fds=[self.descriptor],
        )
        lines: list[str] = []
        try:
            assert process.stdout is not None
            for line in process.stdout:
                write(line)
                lines.append(line.rstrip())
                self.say(line.strip())
            status = process.wait()
        finally:
            process.kill()
            process.wait()
        return lines if status else None


def _failure(what: str, lines: Sequence[str], log: Path) -> str:
    text = "\n".join(lines)
    cause = next(
        (f" ({cause})" for signs, cause in _CAUSES if any(sign in text for sign in signs)), ""
    )
    tail = "\n".join(f"  {line}" for line in lines[-_TAIL_LINES:])
    return f"{what} failed{cause}. The log {log} ends:\n{tail}"
