"""The README's client example, run as it stands against a real server that trains a real model."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def example() -> str:
    """The code between the example's marker and the end of its fence."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- example: client -->\n```python\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found.group(1)


def test_the_example_is_short() -> None:
    lines = [line for line in example().splitlines() if line.strip()]
    assert len(lines) <= 25


@pytest.mark.torch
def test_the_example_trains_a_model(served: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ajet_demo.tiny_model import copy_tiny_model

    copy_tiny_model(served / "model")
    scope: dict[str, Any] = {"__name__": "example"}
    exec(compile(example(), "README.md", "exec"), scope)
    asyncio.run(scope["main"](model=str(served / "model"), steps=1))
    exported = Path(capsys.readouterr().out.strip().splitlines()[-1])
    assert (exported / "model.safetensors").is_file()
    assert (exported / "tokenizer.json").is_file()
    metrics = json.loads((served / "metrics.jsonl").read_text().splitlines()[-1])
    assert metrics["step"] == 1
    assert metrics["episodes"] == 64
