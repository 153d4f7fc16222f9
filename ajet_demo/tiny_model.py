"""The demo's model: a tiny model warmed up for GridWalk."""

from __future__ import annotations

from pathlib import Path

from ajet_worlds import load_world, tiny_model
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

    :raises ConfigError: `directory` exists, required packages are not installed, or the settings of
        the world are invalid.
    """
    return tiny_model.create_tiny_model(
        directory,
        worlds=[load_world("grid")],
        seed=seed,
        hidden=hidden,
        warmup_steps=warmup_steps,
        progress=progress,
    )
