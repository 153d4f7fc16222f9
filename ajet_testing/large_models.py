"""A model that is too large for the memory of any machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path


def too_large(model: str | Path, path: Path) -> str:
    """Copy a model directory with layers of terabytes in its configuration; return the copy."""
    shutil.copytree(model, path)
    config = json.loads((path / "config.json").read_text())
    config["intermediate_size"] = 10**11
    (path / "config.json").write_text(json.dumps(config))
    return str(path)
