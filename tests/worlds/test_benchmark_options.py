"""What benchmarks say of values that mean nothing, before they run anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
# These import the plugin whose trainer they alter.
NEEDS_TORCH = {"health.py", "async_mode.py"}


CASES = [
    ("learning.py", "--jobs", "0", "must be at least 1, not 0"),
    ("learning.py", "--seeds", "five", "'five' is not a whole number"),
    ("health.py", "--jobs", "0", "must be at least 1, not 0"),
    ("async_mode.py", "--at-once", "0", "must be at least 1, not 0"),
    ("async_mode.py", "--bound", "0", "must be at least 1, not 0"),
    ("async_mode.py", "--update-share", "1", "must be between 0 and 1, not 1"),
    ("recovery.py", "--minutes", "0", "must be above 0, not 0"),
]


@pytest.mark.parametrize(
    ("script", "option", "value", "said"),
    [
        pytest.param(*case, marks=[pytest.mark.torch] if case[0] in NEEDS_TORCH else [])
        for case in CASES
    ],
)
def test_a_value_that_means_nothing_is_refused_in_one_line(
    script: str, option: str, value: str, said: str, tmp_path: Path
) -> None:
    command = [sys.executable, str(BENCHMARKS / script), option, value]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == f"{script}: error: argument {option}: {said}"
