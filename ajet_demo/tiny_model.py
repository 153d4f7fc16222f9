"""The demo's model: a tiny model warmed up for GridWalk."""

from __future__ import annotations

from pathlib import Path

from ajet_core.interfaces import ComponentSettings
from ajet_worlds import tiny_model
from ajet_worlds.grid import GridWorld
from ajet_worlds.tiny_model import HIDDEN, ProgressCallback, TinyModelReport


def create_tiny_model(
    directory: Path,
    *,
    seed: int,
    hidden: int = HIDDEN,
    warmup_steps: int | None = None,
    progress: ProgressCallback | None = None,
) -> TinyModelReport:
    """Create a model with `ajet_worlds.tiny_model.create_tiny_model` for the world ``grid``.

    :raises ConfigError: `directory` exists, or required packages are not installed.
    """
    return tiny_model.create_tiny_model(
        directory,
        worlds=[GridWorld(ComponentSettings())],
        seed=seed,
        hidden=hidden,
        warmup_steps=warmup_steps,
        progress=progress,
    )
