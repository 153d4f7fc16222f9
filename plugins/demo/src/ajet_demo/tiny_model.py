"""The demo's models: one that comes with this package, and those that `ajet demo` creates."""

from __future__ import annotations

import gc
import shutil
import tempfile
from pathlib import Path
from typing import Any

from ajet_core.errors import ConfigError
from ajet_worlds import load_world, tiny_model
from ajet_worlds.tiny_model import TinyModelReport

MODEL = Path(__file__).parent / "model"


def copy_tiny_model(directory: Path) -> None:
    """Copy the model of this package to a new directory, atomically.

    It is the one that ``create_tiny_model(directory, seed=0)`` creates: 0.14 million parameters,
    warmed up for the world ``grid``. Creating it takes 20 seconds on two cores.

    :raises ConfigError: `directory` exists.
    """
    if directory.exists():
        raise ConfigError(
            f"{directory} already exists and is not overwritten; choose another directory"
        )
    directory.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        temporary.chmod(0o755)
        for path in MODEL.iterdir():
            shutil.copyfile(path, temporary / path.name)
        temporary.rename(directory)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


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
