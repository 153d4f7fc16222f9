"""The demo's model: a tiny model warmed up for GridWalk."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

from ajet_worlds import load_world, tiny_model
from ajet_worlds.tiny_model import TinyModelReport


def create_tiny_model(directory: Path, **options: Any) -> TinyModelReport:
    """Create a model with `ajet_worlds.tiny_model.create_tiny_model` for the world ``grid``.

    :param options: the other parameters of that function.
    :raises ConfigError: `directory` exists, required packages are not installed, or the settings of
        the world are invalid.
    """
    # The imports of torch and transformers create hundreds of thousands of permanent objects.
    # Looking for garbage among them takes a sixth of the time of the imports, and a second when the
    # interpreter ends.
    gc.disable()
    try:
        return tiny_model.create_tiny_model(directory, worlds=[load_world("grid")], **options)
    finally:
        gc.freeze()
        gc.enable()
