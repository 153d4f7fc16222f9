"""Whether the files of a model are still those with which a run began."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from ajet_core.errors import ConfigError
from ajet_core.files import write_whole

NOTE = "base_model"
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
# Read of each file; a small one has no more.
_PARTS = 64
_PART = 64 * 1024


def note_base_model(run_dir: Path, path: str) -> None:
    """Note the files of the model that a run begins with."""
    # Without the note, `check_base_model` accepts any model, as it does for older runs.
    with contextlib.suppress(OSError):
        write_whole(run_dir / NOTE, _digest(Path(path)).encode())


def check_base_model(run_dir: Path, path: str) -> None:
    """Reject a model that was written again where the model of a run was.

    The run would continue with its own weights, which that model does not have.

    :raises ConfigError: the files differ from those that were noted.
    """
    try:
        noted, now = (run_dir / NOTE).read_bytes().decode("ascii"), _digest(Path(path))
    except (OSError, UnicodeDecodeError):
        return
    if noted and now and noted != now:
        raise ConfigError(
            f"the model in {path} is not the one with which the run in this run directory "
            "began. For a new run, start the server with another --run-dir; to continue "
            "the run, put back the files of its model",
            param="model.path",
        )


def _digest(directory: Path) -> str:
    """Return a digest of a model's configuration, and of the sizes and samples of its weights.

    Large weights would take long to read whole, so parts at equal distances are read.

    :return: "" if it is not a directory with weights.
    """
    files = sorted(
        file for pattern in _WEIGHTS for file in directory.glob(pattern) if file.is_file()
    )
    if not files:
        return ""
    digest = hashlib.sha256()
    for file in [*directory.glob("config.json"), *files]:
        with file.open("rb") as opened:
            size = opened.seek(0, os.SEEK_END)
            digest.update(f"{file.name} {size}\n".encode())
            for at in [*range(0, size, max(_PART, size // _PARTS)), max(0, size - _PART)]:
                opened.seek(at)
                digest.update(opened.read(_PART))
    return digest.hexdigest()
