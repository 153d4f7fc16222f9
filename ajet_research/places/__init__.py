"""Where trials run besides this machine: in the jobs of a cluster, or on hosts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ajet_core.errors import ConfigError
from ajet_core.files import read_bytes, write_whole
from ajet_research.arenas import Arena
from ajet_research.places.running import PlacedRunner
from ajet_research.places.settings import PlaceSettings, read_places
from ajet_research.places.slurm import SlurmPlace
from ajet_research.places.ssh import SshPlace
from ajet_research.runners import LocalRunner, TrialRunner

__all__ = ["LOCAL", "PlaceSettings", "PlacedRunner", "read_places", "runner_in"]

LOCAL = "local"
_CHOSEN = "place"
_JOBS = "jobs"
_BYTES = 4096


def runner_in(on: str | None) -> Callable[[Path, Arena], TrialRunner]:
    """Return what runs the trials of a study.

    A study that has run in a place asks for it again: its directory has the name of the file, for
    people, and not its content, which has commands and may come from elsewhere.

    :param on: a file of places, or ``local``; None for this machine, if no trial ran elsewhere.
    :raises ConfigError: the file is missing or invalid. What is returned raises it too.
    """
    if on is None:
        return _here
    if on == LOCAL:
        return _local
    path = Path(on).resolve()
    places = read_places(path)

    def placed(trials: Path, arena: Arena) -> TrialRunner:
        directory = trials.resolve().parent
        runner = PlacedRunner(
            trials,
            arena,
            _place(places, directory),
            python=places.python,
            patience_seconds=places.patience_seconds,
            poll_seconds=places.poll_seconds,
        )
        write_whole(directory / _CHOSEN, f"{path}\n".encode())
        return runner

    return placed


def _here(trials: Path, arena: Arena) -> TrialRunner:
    try:
        chosen = read_bytes(trials.parent / _CHOSEN, _BYTES).decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return LocalRunner(trials, arena)
    raise ConfigError(
        f"The trials of this study run in the place of the file {chosen!r}. To continue there, "
        f"add --on and that file; to continue on this machine, add --on {LOCAL}."
    )


def _local(trials: Path, arena: Arena) -> TrialRunner:
    (trials.parent / _CHOSEN).unlink(missing_ok=True)
    return LocalRunner(trials, arena)


def _place(settings: PlaceSettings, directory: Path) -> SlurmPlace | SshPlace:
    if settings.slurm is not None:
        return SlurmPlace(
            settings.slurm,
            directory / _JOBS,
            python=settings.python,
            poll_seconds=settings.poll_seconds,
        )
    assert settings.ssh is not None
    return SshPlace(settings.ssh, avoid_seconds=settings.patience_seconds)
