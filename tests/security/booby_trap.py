"""A model directory with code wherever a loader might run some."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (f"touch {self._marker}",))


def booby_trapped(directory: Path, marker: Path, **config: Any) -> Path:
    """Put code in all files that any loader might run."""
    evil = pickle.dumps(Evil(marker))
    for name in (
        "pytorch_model.bin",
        "model.pt",
        "tokenizer.pkl",
        "training_args.bin",
        "model.pth",
    ):
        (directory / name).write_bytes(evil)
    code = f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n"
    for name in ("evil.py", "modeling_evil.py", "tokenization_evil.py", "__init__.py", "setup.py"):
        (directory / name).write_text(code)
    auto_map = {
        "AutoConfig": "evil.EvilConfig",
        "AutoModelForCausalLM": "modeling_evil.EvilModel",
        "AutoTokenizer": ["tokenization_evil.EvilTokenizer", None],
    }
    known = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(
        json.dumps({**known, "auto_map": auto_map, "trust_remote_code": True, **config})
    )
    (directory / "tokenizer_config.json").write_text(
        json.dumps(
            {"auto_map": auto_map, "tokenizer_class": "EvilTokenizer", "trust_remote_code": True}
        )
    )
    return directory
