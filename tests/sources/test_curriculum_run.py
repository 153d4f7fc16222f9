"""A real tiny model learns from a curriculum of a source, while its server is killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from ajet_worlds import load_world
from ajet_worlds.gridwalk import GridWalk, distance
from ajet_worlds.recipe import run_config
from tests.support.gateway_processes import unused_port

pytestmark = pytest.mark.processes

TOKEN = "control-token-of-the-curriculum-test"
DIFFICULTIES = {2: 0.3, 3: 0.6, 4: 0.9}
"""Of walks, by the distance of their goals."""
EPOCHS, STEPS, KILLED_AT = 7, 14, 5
SOURCE = "walks.jsonl?program=grid_program:walk&judge=grid_program:judge"
PICTURE = "difficulty.svg"


class Commands:
    """``ajet`` in a directory, with a server at the same port whenever it is started."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._port = directory, unused_port()
        url = f"http://127.0.0.1:{self._port}"
        self._environ = {
            **os.environ,
            "XDG_STATE_HOME": str(directory / "state"),
            "AJET_SERVER__CONTROL_TOKEN": TOKEN,
            "AJET_URL": url,
            "AJET_TOKEN": TOKEN,
        }

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [str(Path(sys.executable).parent / "ajet"), *arguments]
        return subprocess.Popen(command, cwd=self._directory, env=self._environ)

    def run(self, *arguments: str) -> str:
        command = [str(Path(sys.executable).parent / "ajet"), *arguments]
        return subprocess.run(
            command,
            cwd=self._directory,
            env=self._environ,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout

    def serve(self) -> subprocess.Popen[bytes]:
        """Start the server, and wait until it answers."""
        where = ("--run-dir", "run", "--model-root", "models")
        process = self.start("serve", "--port", str(self._port), *where)
        until(lambda: self.start("status").wait() == 0)
        return process


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 900
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.5)


def steps_of(directory: Path) -> int:
    metrics = directory / "run" / "metrics.jsonl"
    return len(metrics.read_text().splitlines()) if metrics.exists() else 0


@pytest.mark.nightly
@pytest.mark.torch
@pytest.mark.timeout(1800)
def test_a_curriculum_is_learned_across_a_kill_of_the_server(tmp_path: Path) -> None:
    """Each epoch takes a third of the walks. In the end most are known, and walked well."""
    pytest.importorskip("ajet_backend_torch")
    from ajet_worlds.tiny_model import create_tiny_model

    world, model = load_world("grid"), tmp_path / "models" / "tiny"
    create_tiny_model(model, worlds=[world], seed=0)
    (tmp_path / "run.json").write_text(run_config(world, model).model_dump_json())
    shutil.copy(Path(__file__).parent / "grid_program.py", tmp_path)
    walks = [GridWalk(name) for name in world.task_ids("train", 0, 48)]
    rows = [
        # The name is a field too, since rows that differ in their id alone are duplicates.
        {"id": its.task_id, "walk": its.task_id, "difficulty": DIFFICULTIES[length]}
        for its in walks
        for length in [distance(its.position, its.goal)]
    ]
    (tmp_path / "walks.jsonl").write_text("\n".join(map(json.dumps, rows)))
    commands = Commands(tmp_path)
    server = commands.serve()
    options = ("--run", "run.json", "--curriculum", "0.33", "--epochs", str(EPOCHS))
    training = commands.start("train", SOURCE, *options)
    until(lambda: steps_of(tmp_path) >= KILLED_AT)
    server.send_signal(signal.SIGKILL)
    server.wait()
    server = commands.serve()
    commands.run("resume")
    assert training.wait() == 0
    until(lambda: steps_of(tmp_path) >= STEPS)
    server.send_signal(signal.SIGTERM)
    server.wait()
    steps = json.loads(commands.run("difficulty", "run", "--json", "--out", PICTURE))
    # Nothing was trained twice or lost.
    assert [its["step"] for its in steps] == list(range(1, STEPS + 1))
    assert {len(its["batch"]) for its in steps} == {8}
    assert len(steps[-1]["known"]) > 0.8 * len(walks)
    rates = [fmean(its["batch"]) for its in steps]
    assert fmean(rates[:3]) < 0.6, rates
    assert fmean(rates[-3:]) > 0.7, rates
    assert "<svg" in (tmp_path / PICTURE).read_text()
