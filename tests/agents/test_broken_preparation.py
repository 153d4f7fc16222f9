"""An adapter that cannot prepare its framework fails every test of the suite at once."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
CONFTEST = """
from tests.agents.conftest import plain_installed
"""
TESTS = """
from tests.agents import plain
from tests.agents.test_suite import TestPlainAdapter as Suite

{fault}


class TestMutant(Suite):
    pass


del Suite
"""
BROKEN = {
    "the first time": "raise LookupError('no such setting')",
    "the second time": "self.done = 1 / (not hasattr(self, 'done'))",
}


def failed(directory: Path, fault: str) -> tuple[set[str], str]:
    """The tests of the suite that fail, and what pytest prints."""
    (directory / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
    )
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "test_mutant.py").write_text(TESTS.format(fault=fault))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "ajet_testing.conformance", "-q"],
        cwd=directory,
        env={"PYTHONPATH": str(ROOT), "COLUMNS": "200", "HOME": str(directory)},
        capture_output=True,
        check=False,
        text=True,
    )
    names = re.findall(r"^(?:FAILED|ERROR) \S+::(test_\S+)", done.stdout, re.MULTILINE)
    return set(names), done.stdout


@pytest.mark.processes
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(BROKEN["the first time"], id="the first time"),
        pytest.param(BROKEN["the second time"], id="the second time", marks=pytest.mark.nightly),
    ],
)
def test_an_adapter_that_cannot_prepare_its_framework_fails_every_test_at_once(
    tmp_path: Path, fault: str
) -> None:
    prepare = f"def prepare(self):\n    {fault}\n\nplain.PlainAdapter.prepare = prepare"
    names, output = failed(tmp_path, prepare)
    assert len(names) == 15
    assert "Timeout" not in output
    assert "the agent adapter 'plain' of plugin 'plain' (distribution plain 0) failed" in output
