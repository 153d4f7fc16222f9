"""The suite for adapters finds faults: each is planted into an adapter that passes it otherwise."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFTEST = """
from tests.agents.conftest import plain_installed
"""
TESTS = """
from contextlib import contextmanager

from tests.agents import plain
from tests.agents.test_suite import TestPlainAdapter as Suite

{fault}


class TestMutant(Suite):
    pass


del Suite
"""
CHOSEN = "ended or kept or exported or traced"
MUTANTS = {
    "the name of the agent is never reset": (
        """
@contextmanager
def turn(name):
    plain.speaking.set(name)
    yield

plain.turn = turn
""",
        {
            "test_an_agent_that_has_ended_makes_no_further_calls[returned]",
            "test_an_agent_that_has_ended_makes_no_further_calls[raised]",
            "test_an_agent_that_has_ended_makes_no_further_calls_in_its_thread",
        },
    ),
    "the name of the agent is not reset after an exception": (
        """
@contextmanager
def turn(name):
    before = plain.speaking.set(name)
    yield
    plain.speaking.reset(before)

plain.turn = turn
""",
        {"test_an_agent_that_has_ended_makes_no_further_calls[raised]"},
    ),
    "every agent is kept": (
        """
kept = []
fresh = plain.PlainAdapter.fresh

def keeps(self, agent):
    kept.append(fresh(self, agent))
    return kept[-1]

plain.PlainAdapter.fresh = keeps
""",
        {"test_agents_of_episodes_that_are_over_are_not_kept"},
    ),
    "prompts of episodes are exported": (
        "plain.PlainAdapter.prepare = lambda self: None",
        {"test_prompts_of_episodes_are_not_exported"},
    ),
    "tracing is turned off outside of episodes, too": (
        "plain.PlainAdapter.prepare = lambda self: setattr(plain, 'is_quiet', lambda: True)",
        {"test_runs_outside_of_episodes_are_traced_as_before"},
    ),
}
BROKEN = {
    "the first time": "raise LookupError('no such setting')",
    "the second time": "self.done = 1 / (not hasattr(self, 'done'))",
}


def failed(directory: Path, fault: str, *options: str) -> tuple[set[str], str]:
    """The tests of the suite that fail, and what pytest prints."""
    (directory / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
    )
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "test_mutant.py").write_text(TESTS.format(fault=fault))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "ajet_testing.conformance", "-q", *options],
        cwd=directory,
        env={"PYTHONPATH": str(ROOT), "COLUMNS": "200", "HOME": str(directory)},
        capture_output=True,
        check=False,
        text=True,
    )
    names = re.findall(r"^(?:FAILED|ERROR) \S+::(test_\S+)", done.stdout, re.MULTILINE)
    return set(names), done.stdout


@pytest.mark.processes
@pytest.mark.parametrize(("fault", "expected"), MUTANTS.values(), ids=MUTANTS)
def test_the_tests_for_a_fault_find_it(tmp_path: Path, fault: str, expected: set[str]) -> None:
    names, output = failed(tmp_path, fault, "-k", CHOSEN)
    assert names == expected, output


@pytest.mark.processes
@pytest.mark.parametrize("fault", BROKEN.values(), ids=BROKEN)
def test_an_adapter_that_cannot_prepare_its_framework_fails_every_test_at_once(
    tmp_path: Path, fault: str
) -> None:
    prepare = f"def prepare(self):\n    {fault}\n\nplain.PlainAdapter.prepare = prepare"
    names, output = failed(tmp_path, prepare)
    assert len(names) == 14
    assert "Timeout" not in output
    assert "the agent adapter 'plain' of plugin 'plain' (distribution plain 0) failed" in output
