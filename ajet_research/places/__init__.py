"""Where trials run besides this machine: in the jobs of a cluster, or on hosts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ajet_core.files import write_whole
from ajet_research.arenas import Arena
from ajet_research.places.running import PlacedRunner
from ajet_research.places.settings import PlaceSettings, read_places
from ajet_research.places.slurm import SlurmPlace
from ajet_research.places.ssh import SshPlace
from ajet_research.runners import LocalRunner, TrialRunner

__all__ = ["LOCAL", "PLACES", "PlaceSettings", "PlacedRunner", "read_places", "runner_in"]

LOCAL = "local"
PLACES = "places.toml"
_JOBS = "jobs"


def runner_in(on: str | None, directory: Path) -> Callable[[Path, Arena], TrialRunner]:
    """Return what runs the trials of a study, and keeps where in its directory.

    :param on: a file of places, or ``local``; None for what the directory has kept.
    :param directory: of the study.
    :raises ConfigError: the file is missing or invalid.
    """
    kept = directory / PLACES
    if on == LOCAL or (on is None and not kept.exists()):
        return _local
    path = kept if on is None else Path(on)
    its, content = read_places(path), path.read_bytes()

    def placed(trials: Path, arena: Arena) -> TrialRunner:
        runner = PlacedRunner(
            trials,
            arena,
            _place(its, trials.resolve().parent),
            python=its.python,
            patience_seconds=its.patience_seconds,
            poll_seconds=its.poll_seconds,
        )
        write_whole(trials.parent / PLACES, content)
        return runner

    return placed


def _local(trials: Path, arena: Arena) -> TrialRunner:
    (trials.parent / PLACES).unlink(missing_ok=True)
    return LocalRunner(trials, arena)


def _place(its: PlaceSettings, directory: Path) -> SlurmPlace | SshPlace:
    if its.slurm is not None:
        return SlurmPlace(
            its.slurm, directory / _JOBS, python=its.python, poll_seconds=its.poll_seconds
        )
    assert its.ssh is not None
    return SshPlace(its.ssh, avoid_seconds=its.patience_seconds)
