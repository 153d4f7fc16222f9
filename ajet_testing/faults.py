"""Failures on order: a scripted component dies, raises, or hangs until a test lets it go on."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import TracebackType
from typing import Annotated, Self

from pydantic import Field

from ajet_core.errors import AjetError
from ajet_core.interfaces import ComponentSettings

Count = Annotated[int, Field(ge=1)]


class FaultSettings(ComponentSettings):
    """When to fail. Counts are 1-based: requests of an engine, numbers of a trainer's steps.

    :param dies_at: kill the own process without warning; only for components in a worker process.
    :param raises_at: raise the component's error.
    :param hangs_at: wait for `HoldGate.release`.
    :param once: each failure happens once in a run directory, so that a component that is started
        again gets past it.
    """

    dies_at: Count | None = None
    raises_at: Count | None = None
    hangs_at: Count | None = None
    once: bool = True


def end_process() -> None:
    """Kill the own process."""
    os.kill(os.getpid(), signal.SIGKILL)


class HoldGate:
    """A gate in the run directory at which a component hangs, held by the test.

    ``with HoldGate(run_dir, "trainer") as gate: ...; gate.release()``. It works across processes, and
    stays open once it has been released.
    """

    def __init__(self, run_dir: Path, name: str) -> None:
        self._path = gate_path(run_dir, name)
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(self._path)
        # Opened for both directions, so that neither side waits for the other, and a byte that was written
        # stays until it is read.
        self._descriptor = os.open(self._path, os.O_RDWR)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._path.unlink()

    def release(self) -> None:
        """Let what hangs at the gate go on."""
        if self._descriptor is not None:
            os.write(self._descriptor, b"x")


def gate_path(run_dir: Path, name: str) -> Path:
    """The named pipe of a gate."""
    return run_dir / f"scripted-{name}.gate"


class Faults:
    """Decides whether a failure is due.

    :param name: the component's kind, ``engine`` or ``trainer``.
    :param error: what `FaultSettings.raises_at` raises.
    """

    def __init__(
        self, settings: FaultSettings, run_dir: Path, name: str, error: type[AjetError]
    ) -> None:
        self._settings = settings
        self._run_dir = run_dir
        self._name = name
        self._error = error

    def check(self, count: int) -> bool:
        """Die or raise if that is due at `count`.

        :return: whether the component is to hang at its gate now.
        """
        settings = self._settings
        if self.due(count, settings.dies_at, "died"):
            end_process()
        if self.due(count, settings.raises_at, "raised"):
            raise self._error(f"scripted failure of the {self._name} at {count}")
        return self.due(count, settings.hangs_at, "hung")

    def die(self, order: str | None, method: str) -> None:
        """Kill the own process if that is ordered for `method`."""
        if order == method and self._first("died"):
            end_process()

    def due(self, count: int, at: int | None, what: str) -> bool:
        """Whether a failure that is ordered for `at` is to happen at `count`.

        :param what: its name, by which those that happen once are remembered.
        """
        return count == at and self._first(what)

    def open_gate(self, *, blocking: bool) -> int:
        """A descriptor from which a byte can be read once the gate is released."""
        path = gate_path(self._run_dir, self._name)
        try:
            return os.open(path, os.O_RDWR | (0 if blocking else os.O_NONBLOCK))
        except OSError as error:
            raise self._error(f"cannot hang: no HoldGate at {path} ({error})") from error

    def _first(self, what: str) -> bool:
        if not self._settings.once:
            return True
        try:
            (self._run_dir / f"scripted-{self._name}.{what}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True
