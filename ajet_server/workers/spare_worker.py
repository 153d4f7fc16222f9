"""A worker that starts with the server, before the run that needs it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path

from ajet_core.errors import AjetError
from ajet_core.plugin import EngineSpec, PluginManager, TrainerSpec
from ajet_installation.environment import Interpreter
from ajet_installation.interpreters import choose_interpreters, find_engine, find_trainer
from ajet_installation.settings import Settings
from ajet_server.workers.methods import IMPORT
from ajet_server.workers.process import WorkerProcess

_log = logging.getLogger("ajet.server")


class SpareWorker:
    """A worker process that imports components in advance, for the first boot that can use it.

    :param targets: what it imports; it is not started if this is empty.
    :param interpreter: to run it in, this process's by default.
    :param orphan_seconds: as for `WorkerProcess.spawn`.
    """

    def __init__(
        self,
        run_dir: Path,
        targets: Sequence[str] = (),
        interpreter: Interpreter | None = None,
        orphan_seconds: float = 0.0,
    ) -> None:
        self._run_dir = run_dir
        self._targets = list(targets)
        self._fits = interpreter, orphan_seconds
        self._process: WorkerProcess | None = None
        self._importing: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, settings: Settings, plugins: PluginManager) -> SpareWorker:
        """Return the worker for the setting `workers.preload`.

        :raises ConfigError: a component of the setting is unknown or has no interpreter.
        """
        run_dir, preload = settings.server.run_dir.resolve(), settings.workers.preload
        specs: dict[str, EngineSpec | TrainerSpec] = {}
        orphan_seconds = settings.server.orphan_seconds
        if "engine" in preload:
            specs["engine"] = find_engine(plugins, preload["engine"])
        if "trainer" in preload:
            trainer = specs["trainer"] = find_trainer(plugins, preload["trainer"])
            orphan_seconds = orphan_seconds if trainer.capabilities.reloads else 0.0
        pythons = choose_interpreters(settings, plugins, **specs)
        chosen = [pythons.get(kind) for kind in specs]
        if not chosen:
            return cls(run_dir)
        if any(python != chosen[0] for python in chosen):
            _log.warning(
                "workers.preload is not used: engine %s and trainer %s need two interpreters",
                *(spec.name for spec in specs.values()),
            )
            return cls(run_dir)
        return cls(run_dir, [spec.target for spec in specs.values()], chosen[0], orphan_seconds)

    async def start(self) -> None:
        """Start the process; the imports continue after this returns.

        :raises WorkerBootError: the interpreter cannot be started.
        """
        if self._targets:
            process = await spawn(self._run_dir, "worker", *self._fits)
            self._process = process
            self._importing = asyncio.create_task(self._import(process))

    def take(self, interpreter: Interpreter | None, orphan_seconds: float) -> WorkerProcess | None:
        """Return the process and forget it; None unless it runs as a boot needs it."""
        process = self._process
        fits = self._fits == (interpreter, orphan_seconds)
        if process is None or process.died.done() or not fits:
            return None
        self._process = None
        return process

    async def close(self) -> None:
        """End the process, unless a run has taken it."""
        process, self._process = self._process, None
        if process is not None:
            # Before anything is awaited: a run that is cancelled here leaves nothing to wait for.
            process.kill()
            await process.close(grace=0.0)
        if self._importing is not None:
            self._importing.cancel()
            await asyncio.gather(self._importing, return_exceptions=True)

    async def _import(self, process: WorkerProcess) -> None:
        # A boot reports what is wrong.
        with contextlib.suppress(AjetError):
            await process.connection.call(IMPORT, self._targets)


def place_of(run_dir: Path, name: str) -> tuple[Path, Path]:
    """Return the log of a worker, and where it waits for the next server."""
    return run_dir / "logs" / f"{name}.log", run_dir / "workers" / f"{name}.sock"


async def spawn(
    run_dir: Path, name: str, interpreter: Interpreter | None, orphan_seconds: float
) -> WorkerProcess:
    """Start the worker `name` of a run directory, as `WorkerProcess.spawn` does."""
    log, rendezvous = place_of(run_dir, name)
    return await WorkerProcess.spawn(log, interpreter, rendezvous, orphan_seconds)
