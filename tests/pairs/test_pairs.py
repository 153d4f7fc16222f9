"""Each trainer with each engine: the demo's model learns, and all logprobs are exact."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from ajet_demo.tiny_model import MODEL
from ajet_testing.backends import ROOT, backend_python

# With the engine of this repository a step takes seconds. With the others the curve is not waited
# for, unless `--steps` says so: benchmarks/results has it.
STEPS = {"torch": 10}
FEW_STEPS = 3
# From so many steps on, success rises by much more than chance would make it: twice the deviation
# of a mean of 64 walks.
TELLING_STEPS, RAISED = 10, 0.12

pytestmark = [pytest.mark.pairs, pytest.mark.torch, pytest.mark.timeout(1500)]


# Any trainer has every channel; those that write no files are tested with one.
BROADCAST = {("torch", "vllm"), ("torch", "sglang")}
DIFFERENCES = {("trl", "vllm"), ("verl", "sglang"), ("verl", "torch")}


def cycle(trainer: str, engine: str, steps: int) -> dict[str, Any]:
    """What `benchmarks/cycle.py` says."""
    command = [sys.executable, str(ROOT / "benchmarks" / "cycle.py"), "--model", str(MODEL)]
    command += ["--trainer", trainer, "--engine", engine, "--steps", str(steps)]
    if (trainer, engine) in BROADCAST:
        command += ["--channel", "collective"]
    if (trainer, engine) in DIFFERENCES:
        command += ["--channel", "delta"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-5000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_pair_learns_and_is_exact(
    trainer: str, engine: str, request: pytest.FixtureRequest
) -> None:
    for name in {trainer, engine} - {"torch"}:
        backend_python(name)
    steps = request.config.getoption("--steps") or STEPS.get(engine, FEW_STEPS)
    found = cycle(trainer, engine, steps)
    if steps >= TELLING_STEPS:
        assert found["success_after"] >= found["success_before"] + RAISED
    # Weights that stay in memory are written down at the end alone; all others are those that were
    # published.
    in_memory = (trainer, engine) in {("torch", "torch"), *BROADCAST}
    versions = [0, steps] if in_memory else list(range(steps + 1))
    assert found["versions_checked"] == versions
    assert found["max_logprob_diff"] <= 1e-4
    assert found["max_trainer_diff"] <= 1e-4
