"""A program that knows nothing of agentjet learns, in sandboxes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.exec.usable import no_bubblewrap

pytestmark = pytest.mark.processes

BENCHMARK = Path(__file__).parents[2] / "benchmarks/exec_learning.py"


@pytest.mark.nightly
@pytest.mark.torch
@pytest.mark.timeout(3600)
@pytest.mark.skipif(bool(no_bubblewrap()), reason=no_bubblewrap())
def test_a_program_in_sandboxes_learns() -> None:
    pytest.importorskip("ajet_backend_torch")
    done = subprocess.run(
        [sys.executable, BENCHMARK, "--seeds", "1"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["success_before"][0] < 0.5
    assert found["success_after"][0] >= 0.9
