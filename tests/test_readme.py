"""The README's client example, run as it stands against a real server that trains a real model."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
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


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A server started by the command line; gives its run directory."""
    pytest.importorskip("ajet_backend_torch")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run_dir = tmp_path / "run"
    command = [sys.executable, "-m", "ajet_cli.main", "serve", "--run-dir", str(run_dir)]
    process = subprocess.Popen(
        [*command, "--port", "0"], stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    assert process.stderr is not None
    # The line is logged once the server listens and has left its address.
    for line in process.stderr:
        if "listening on" in line:
            break
    url = json.loads((run_dir / "server.json").read_text())["url"]
    monkeypatch.setenv("AJET_URL", url)
    try:
        yield run_dir
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0
        assert not (run_dir / "server.json").exists()


@pytest.mark.torch
def test_the_example_trains_a_model(served: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ajet_demo.tiny_model import create_tiny_model

    create_tiny_model(served / "model", seed=0, warmup_steps=1)
    scope: dict[str, Any] = {"__name__": "example"}
    exec(compile(example(), "README.md", "exec"), scope)
    asyncio.run(scope["main"](model=str(served / "model"), steps=1))
    exported = Path(capsys.readouterr().out.strip().splitlines()[-1])
    assert (exported / "model.safetensors").is_file()
    assert (exported / "tokenizer.json").is_file()
    metrics = json.loads((served / "metrics.jsonl").read_text().splitlines()[-1])
    assert metrics["step"] == 1
    assert metrics["episodes"] == 64
