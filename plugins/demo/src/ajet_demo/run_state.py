"""The directory of a demo run, and its state between sessions."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from ajet_core.errors import ConfigError
from ajet_core.files import read_json
from ajet_demo.report import Summary, write_json

STATE_FILE = "demo.json"
SUMMARY_FILE = "summary.json"


class RunState(BaseModel):
    """The content of demo.json; seconds are sums over all sessions, as in `Summary`."""

    # Earlier versions wrote more.
    model_config = ConfigDict(extra="ignore")

    seed: int
    finished: bool = False
    success_before: float | None = None
    seconds: float = 0.0
    boot_seconds: float = 0.0
    training_seconds: float = 0.0
    rollout_seconds: float = 0.0

    def save(self, run_dir: Path) -> None:
        """Write the state."""
        write_json(run_dir / STATE_FILE, self.model_dump())


def open_run(run_dir: Path, seed: int, *, fresh: bool) -> tuple[Path, RunState]:
    """Return the directory to use and its state; start a new run if the directory is new or empty.

    :param fresh: if the directory has a run, use a new one next to it, with a number appended.
    :raises ConfigError: the directory has other content, or a run with another seed.
    """
    if fresh:
        run_dir = _unused(run_dir)
    path = run_dir / STATE_FILE
    if not path.exists():
        if run_dir.exists() and any(run_dir.iterdir()):
            raise ConfigError(
                f"{run_dir} is not empty and not a demo run (it has no {STATE_FILE}): choose "
                "another --run-dir"
            )
        run_dir.mkdir(parents=True, exist_ok=True)
        state = RunState(seed=seed)
        state.save(run_dir)
        return run_dir, state
    try:
        state = RunState.model_validate(read_json(path))
    except ValueError as error:
        raise ConfigError(
            f"cannot read {path} as the state of a demo run: start a new run beside it with --fresh"
        ) from error
    if state.seed != seed:
        raise ConfigError(
            f"{run_dir} contains a run with seed {state.seed}, not {seed}: pass --seed "
            f"{state.seed} to continue it, or choose another --run-dir"
        )
    return run_dir, state


def read_summary(run_dir: Path) -> Summary:
    """Read the summary of a finished run.

    :raises ConfigError: it cannot be read.
    """
    path = run_dir / SUMMARY_FILE
    try:
        return Summary.model_validate(read_json(path))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read {path}, although the run is finished: start a new run with --fresh"
        ) from error


def _unused(run_dir: Path) -> Path:
    number = 2
    candidate = run_dir
    while candidate.exists():
        candidate = run_dir.with_name(f"{run_dir.name}-{number}")
        number += 1
    return candidate
