"""Several processes train as one. Each run is a process of its own: accelerate keeps what it is for good."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from batches import load

pytestmark = pytest.mark.timeout(400)


def run(model: str, directory: Path, processes: int, mode: str) -> dict[str, Any]:
    """What `several_processes.py` prints."""
    script = Path(__file__).with_name("several_processes.py")
    done = subprocess.run(
        [sys.executable, script, model, directory, str(processes), mode],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("mode", ["train", "lora"])
def test_two_processes_train_as_one_does(mode, models, tmp_path):
    one, two = (run(models(), tmp_path / str(count), count, mode) for count in (1, 2))
    assert two["restored"]
    for mine, other in zip(two["reports"], one["reports"], strict=True):
        assert mine["trained"] == other["trained"]
        assert mine["metrics"].keys() == other["metrics"].keys()
        for name, value in mine["metrics"].items():
            # A clipped fraction jumps by a token.
            tolerance = {"abs": 0.03} if name == "clip_fraction" else {"rel": 1e-3, "abs": 1e-5}
            assert value == pytest.approx(other["metrics"][name], **tolerance), name
        for logprobs, others in zip(mine["logprobs"], other["logprobs"], strict=True):
            assert logprobs == pytest.approx(others, abs=1e-3)
    weights = [load(str(tmp_path / str(count) / "export")).state_dict() for count in (1, 2)]
    for name, tensor in weights[0].items():
        assert torch.allclose(tensor, weights[1][name], atol=1e-4), name


def test_the_death_of_a_process_loses_the_weights_and_is_told(models, tmp_path):
    found = run(models(), tmp_path, 2, "kill")
    assert "checkpoint" in found["step"] or "has ended" in found["step"]
    assert found["publish"]
