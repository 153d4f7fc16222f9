"""Scripted failures: a component dies, raises, or hangs until a test releases it."""

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
    """When to fail. Counts are 1-based: requests of an engine, steps of a trainer.

    :param dies_at: kill its process without warning; only for components in a worker process.
    :param raises_at: raise the component's error.
    :param hangs_at: wait for `HoldGate.release`.
    :param once: each failure happens only once per run directory, so that a restarted component
        continues.
    """

    dies_at: Count | None = None
    raises_at: Count | None = None
    hangs_at: Count | None = None
    once: bool = True


def end_process() -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)


class HoldGate:
    """A gate in the run directory at which a component hangs until the test releases it.

    ``with HoldGate(run_dir, "trainer") as gate: ...; gate.release()``. It works across processes,
    and stays open once released.
    """

    def __init__(self, run_dir: Path, name: str) -> None:
        self._path = gate_path(run_dir, name)
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(self._path)
        # Opened for reading and writing, so that neither side blocks on opening, and a written byte
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
        """Release the component that hangs at the gate."""
        if self._descriptor is not None:
            os.write(self._descriptor, b"x")


def gate_path(run_dir: Path, name: str) -> Path:
    """Return the path of a gate's named pipe."""
    return run_dir / f"scripted-{name}.gate"


class Faults:
    """Decides when failures happen.

    :param name: the component's kind, ``engine`` or ``trainer``.
    :param error: the error for `FaultSettings.raises_at`.
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

        :return: whether the component must hang at its gate now.
        """
        settings = self._settings
        if self.due(count, settings.dies_at, "died"):
            end_process()
        if self.due(count, settings.raises_at, "raised"):
            raise self._error(f"scripted failure of the {self._name} at {count}")
        return self.due(count, settings.hangs_at, "hung")

    def die(self, order: str | None, method: str) -> None:
        """Kill this process if `order` names `method`."""
        if order == method and self._first("died"):
            end_process()

    def due(self, count: int, at: int | None, what: str) -> bool:
        """Return whether a failure set for `at` happens at `count`.

        :param what: its name, under which it is recorded if failures happen only once.
        """
        return count == at and self._first(what)

    def open_gate(self, *, blocking: bool) -> int:
        """Return a descriptor from which a byte can be read once the gate is released."""
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
