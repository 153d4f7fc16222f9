"""`ajet demo --two-models` as a user runs it: interrupted with Ctrl-C, and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from as_user import ENTRY, steps_in

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]


def start(run_dir: Path, steps: int) -> subprocess.Popen[str]:
    """With a target that only the number of steps can end."""
    command = [sys.executable, "-c", ENTRY, "demo", "--two-models", "--run-dir", str(run_dir)]
    return subprocess.Popen(
        [*command, "--steps", str(steps), "--target", "1.0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )


def test_two_models_are_trained_and_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    first = start(run_dir, 50)
    assert first.stderr is not None
    for line in first.stderr:
        if line.startswith("step 1:"):
            break
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=120)
    assert first.returncode != 0
    done = len(steps_in(run_dir))
    assert done >= 1
    second = start(run_dir, done + 1)
    out, err = second.communicate(timeout=200)
    assert second.returncode == 0, err
    summary = json.loads(out)
    assert summary["steps"] == done + 1
    assert steps_in(run_dir) == list(range(1, done + 2))
    assert summary["parameters"]["planner"] != summary["parameters"]["executor"]
    assert summary["episodes"]["planner"] == summary["episodes"]["executor"]
    for directory in summary["model_dirs"].values():
        assert (Path(directory) / "model.safetensors").is_file()
    assert (run_dir / "reward.png").is_file()
