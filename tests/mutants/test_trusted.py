"""The unit tests of studies catch faults of their trusted part: fold, actions, inference, verify.

Two mutations are tests of each change, all others are nightly tests.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.planting import MUTATION
from tests.mutants.trusted import EDITS, SUITES

pytest.importorskip("scipy")

ROOT = Path(__file__).parents[2]
QUICK = {"a_look_does_not_wait", "p_is_one_sided"}
marked = [
    pytest.param(name, marks=[] if name in QUICK else [pytest.mark.nightly]) for name in EDITS
]


def run(mutation: str, suites: list[str]) -> tuple[int, str]:
    """Run tests with a mutation, "" for none; return exit status and output."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [
            sys.executable,
            *("-m", "pytest", "-x", "-q", "--tb=line", "--show-capture=no"),
            *("-m", "not nightly and not processes", "-o", "timeout=300"),
            *("-p", "tests.mutants.planting", "-p", "no:cacheprovider"),
            *suites,
        ],
        cwd=ROOT,
        env={**clean, MUTATION: f"trusted:{mutation}", "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        capture_output=True,
        check=False,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.processes
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mutation", marked)
def test_the_unit_tests_catch(mutation: str) -> None:
    status, output = run(mutation, EDITS[mutation].suites)
    assert status == pytest.ExitCode.TESTS_FAILED, f"they pass with the fault:\n{output}"
    assert re.search(r"^FAILED \S+::test_", output, re.MULTILINE), output
    assert "Timeout" not in output


@pytest.mark.nightly
@pytest.mark.processes
@pytest.mark.timeout(1200)
def test_without_a_mutation_they_pass() -> None:
    suites = sorted({path for edit in EDITS.values() for path in edit.suites})
    status, output = run("", suites)
    assert status == pytest.ExitCode.OK, output


@pytest.mark.slow
def test_every_mutation_changes_one_place_of_its_module() -> None:
    for edit in EDITS.values():
        compile(edit.text(), edit.path.name, "exec")
    assert {edit.module for edit in EDITS.values()} == SUITES.keys()
    assert len(EDITS) >= 25
