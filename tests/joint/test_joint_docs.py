"""`docs/joint.md`: its example, run unchanged on two real servers that train real models."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ajet_installation.settings import Settings

TEXT = (Path(__file__).parents[2] / "docs" / "joint.md").read_text(encoding="utf-8")


@contextlib.contextmanager
def served(run_dir: Path) -> Iterator[str]:
    """A server started by the command line; its URL."""
    command = [sys.executable, "-m", "ajet_cli.main", "serve", "--run-dir", str(run_dir)]
    process = subprocess.Popen(
        [*command, "--port", "0"], stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "listening on" in line:
            break
    try:
        yield json.loads((run_dir / "server.json").read_text())["url"]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


@pytest.mark.nightly
@pytest.mark.torch
@pytest.mark.timeout(300)
def test_the_example_trains_two_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ajet_backend_torch")
    from ajet_demo.tiny_model import create_tiny_model

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    found = re.search(r"<!-- example: joint -->\n```python\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    scope: dict[str, Any] = {"__name__": "example"}
    exec(compile(found.group(1), "joint.md", "exec"), scope)
    models = {}
    with contextlib.ExitStack() as stack:
        urls = {}
        for role, width in (("planner", 64), ("executor", 32)):
            models[role] = str(tmp_path / role / "model")
            create_tiny_model(Path(models[role]), seed=0, hidden=width, warmup_steps=1)
            urls[role] = stack.enter_context(served(tmp_path / role))
        asyncio.run(scope["main"](urls, models, steps=1))
    told = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert set(told) == {"planner", "executor"}
    for role, exported in told.items():
        assert (Path(exported) / "model.safetensors").is_file()
        metrics = json.loads((tmp_path / role / "metrics.jsonl").read_text().splitlines()[-1])
        assert (metrics["step"], metrics["episodes"]) == (1, 64)


def test_the_settings_of_the_page_are_settings() -> None:
    (toml,) = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    peers = Settings(server=tomllib.loads(toml)["server"]).server.peers
    assert [(name, peer.url) for name, peer in peers.items()] == [
        ("executor", "https://gpu2.example:8642")
    ]
