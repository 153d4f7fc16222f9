"""Faults of plugins are caught by the suite of their kind, and by nothing else.

Each mutation changes one thing of a component that passes its suite. All but `QUICK` are nightly
tests.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from tests.mutants import (
    advantage,
    agent,
    command,
    engine,
    judge,
    logger,
    merger,
    observer,
    reader,
    sandbox,
    source,
    store,
    trainer,
    world,
)
from tests.mutants.planting import MUTATION, Mutants

ROOT = Path(__file__).parents[2]
KINDS = (
    store,
    logger,
    observer,
    merger,
    advantage,
    reader,
    judge,
    sandbox,
    source,
    world,
    engine,
    trainer,
    command,
    agent,
)
ALL = [mutants for kind in KINDS for mutants in kind.ALL]
QUICK = {
    "a_refused_step_counts",
    "a_rewind_deletes_batches",
    "groups_are_slices_of_the_batch",
    "the_last_call_is_lost",
    "tokens_have_the_version_of_the_request",
}


def run(mutants: Mutants, mutation: str, directory: Path) -> tuple[int, str]:
    """Run a suite on a component with a mutation, "" for none; return exit status and output."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    limit = 60 if mutants.torch else 30
    done = subprocess.run(
        [
            sys.executable,
            *(
                "-m",
                "pytest",
                "-x",
                "-q",
                "--tb=line",
                "--show-capture=no",
                "-o",
                f"timeout={limit}",
            ),
            *("-p", "tests.mutants.planting", "-p", "no:cacheprovider", "-p", "no:schemathesis"),
            str(ROOT / mutants.suite),
        ],
        # Some mutations leave files there.
        cwd=directory,
        env={
            **clean,
            MUTATION: f"{mutants.kind}:{mutation}",
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT, Path(__file__).parent / "others"))),
            "COLUMNS": "200",
        },
        capture_output=True,
        check=False,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


def marks(mutants: Mutants, *, quick: bool) -> list[pytest.MarkDecorator]:
    return [
        pytest.mark.processes,
        pytest.mark.timeout(600),
        *([pytest.mark.torch] if mutants.torch else []),
        *([] if quick else [pytest.mark.nightly]),
    ]


MUTATIONS = [
    pytest.param(each, name, id=f"{each.kind}-{name}", marks=marks(each, quick=name in QUICK))
    for each in ALL
    for name in each.planted
]
SUITES = [
    pytest.param(each, id=each.suite.rpartition("::")[2], marks=marks(each, quick=False))
    for each in ALL
]


@pytest.mark.parametrize(("mutants", "mutation"), MUTATIONS)
def test_the_suite_catches(mutants: Mutants, mutation: str, tmp_path: Path) -> None:
    status, output = run(mutants, mutation, tmp_path)
    assert status == pytest.ExitCode.TESTS_FAILED, f"it passes with the fault:\n{output}"
    assert re.search(r"^FAILED \S+::test_", output, re.MULTILINE), output
    assert not re.search(r"^ERROR ", output, re.MULTILINE), output


@pytest.mark.parametrize("mutants", SUITES)
def test_without_a_mutation_the_suite_passes(mutants: Mutants, tmp_path: Path) -> None:
    status, output = run(mutants, "", tmp_path)
    assert status == pytest.ExitCode.OK, output


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__.rpartition(".")[2])
def test_every_kind_has_ten_mutations(kind: ModuleType) -> None:
    mutants: Sequence[Mutants] = kind.ALL
    names = [name for each in mutants for name in each.planted]
    assert len(set(names)) == len(names) >= 10


def test_the_quick_ones_exist() -> None:
    assert {name for each in ALL for name in each.planted} >= QUICK
