"""A model that is too large for the memory of any machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path


def too_large(model: str | Path, path: Path) -> str:
    """Copy a model directory, with layers of hundreds of gigabytes; return the copy."""
    shutil.copytree(model, path)
    config = json.loads((path / "config.json").read_text())
    # The most that is accepted.
    config["intermediate_size"] = 2**31 - 1
    (path / "config.json").write_text(json.dumps(config))
    return str(path)
