"""Tests of a suite that did not run are listed, and none can hang."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ajet_testing.suites
from ajet_testing.conformance import ConformanceSuite

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}
EMPTIED = """
import pytest
from ajet_testing.suites.judge_suite import JudgeSuite


class Whole(JudgeSuite):
    examples = (("t", "yes", 1.0), ("t", "no", 0.0))

    def make_judge(self):
        return lambda task, result: float(result == "yes")


class TestWhole(Whole):
    pass


class TestEmptied(Whole):
    test_tasks_stay_as_they_are = None

    def test_examples_have_their_rewards(self):
        pass

    @pytest.mark.skip
    def test_the_same_result_has_the_same_reward(self):
        pass

    @pytest.mark.skip(reason="it keeps a file open")
    def test_episodes_at_the_same_time_do_not_disturb_each_other(self):
        pass

    def test_of_its_own(self):
        pass


class TestSkipping(Whole):
    def make_judge(self):
        pytest.skip("no judge")


class TestFailing(Whole):
    @pytest.mark.xfail(reason="known", strict=True)
    def test_tasks_stay_as_they_are(self):
        raise LookupError
"""
HANGING = """
import asyncio
import threading
from ajet_testing.suites.reader_suite import ReaderSuite


class TestHanging(ReaderSuite):
    time_limit = 1.0

    def make_reader(self):
        threading.Event().wait()

    def write(self, directory, items):
        return ""

    async def test_of_its_own(self):
        await asyncio.Event().wait()


class TestAnother(ReaderSuite):
    def make_reader(self):
        raise LookupError
"""


def run(directory: Path, source: str, *options: str) -> str:
    (directory / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
    )
    (directory / "test_it.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-p", "ajet_testing.conformance", *options]
    done = subprocess.run(
        command, cwd=directory, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return done.stdout


def report(output: str) -> list[str]:
    """The lines of the report."""
    _, _, rest = output.partition(" tests of suites that did not run ")
    return re.split(r"\n(?:=|\d+ )", rest.partition("\n")[2])[0].strip().splitlines()


@pytest.mark.processes
@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), id="one process"),
        pytest.param(("-n", "2"), id="workers", marks=pytest.mark.nightly),
    ],
)
def test_tests_that_were_skipped_overridden_removed_or_deselected_are_listed(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    deselected = ["--deselect", "test_it.py::TestFailing::test_examples_have_their_rewards"]
    assert report(run(tmp_path, EMPTIED, "-q", *deselected, *options)) == [
        (
            "test_it.py::TestEmptied (JudgeSuite): 1 of the suite's 5 functions ran; "
            "the class ran 8 of its 10 cases"
        ),
        "  test_episodes_at_the_same_time_do_not_disturb_each_other: skipped: it keeps a file open",
        "  test_examples_have_their_rewards: overridden by TestEmptied",
        "  test_tasks_stay_as_they_are: removed by TestEmptied",
        "  test_the_same_result_has_the_same_reward: skipped without a reason",
        (
            "test_it.py::TestFailing (JudgeSuite): 3 of the suite's 5 functions ran; "
            "the class ran 8 of its 10 cases"
        ),
        "  test_examples_have_their_rewards: deselected, or pytest stopped before it",
        "  test_tasks_stay_as_they_are: expected to fail: known",
        (
            "test_it.py::TestSkipping (JudgeSuite): 0 of the suite's 5 functions ran; "
            "the class ran 0 of its 10 cases"
        ),
        "  test_episodes_at_the_same_time_do_not_disturb_each_other: skipped: no judge",
        "  test_examples_have_their_rewards: skipped: no judge",
        "  test_tasks_stay_as_they_are: skipped: no judge",
        "  test_the_same_result_has_the_same_reward: skipped: no judge",
        "  test_unusable_results_have_rewards_that_are_no_better: skipped: no judge (6 of 6)",
    ]


@pytest.mark.processes
def test_suites_of_which_all_tests_were_deselected_take_a_line(tmp_path: Path) -> None:
    output = run(tmp_path, EMPTIED, "-q", "-k", "TestWhole")
    suites = [f"test_it.py::Test{name} (JudgeSuite)" for name in ("Emptied", "Failing", "Skipping")]
    assert report(output) == [f"deselected completely: {', '.join(suites)}"]


@pytest.mark.processes
def test_a_suite_that_ran_completely_is_not_reported(tmp_path: Path) -> None:
    output = run(tmp_path, EMPTIED.partition("class TestEmptied")[0], "-q")
    assert "9 passed" not in output
    assert "10 passed" in output
    assert "did not run" not in output


@pytest.mark.processes
def test_a_test_that_hangs_fails_by_name_with_its_limit(tmp_path: Path) -> None:
    """Whether it is asynchronous or not."""
    hanging = "test_an_empty_dataset_has_no_items"
    output = run(tmp_path, HANGING, "-k", f"TestHanging and ({hanging} or test_of_its_own)")
    assert output.count("Failed: Timeout (>1.0s) from pytest-timeout") >= 2
    for name in (hanging, "test_of_its_own"):
        assert f"FAILED test_it.py::TestHanging::{name} - Failed: Timeout (>1.0s)" in output


@pytest.mark.processes
def test_a_limit_that_the_user_has_set_comes_first(tmp_path: Path) -> None:
    hanging = "test_an_empty_dataset_has_no_items"
    only = ["-k", f"TestHanging and {hanging}"]
    output = run(tmp_path, HANGING, "--timeout", "0.5", *only)
    assert f"TestHanging::{hanging} - Failed: Timeout (>0.5s)" in output


@pytest.mark.processes
@pytest.mark.parametrize(("plugin", "package"), [("timeout", "timeout"), ("asyncio", "asyncio")])
def test_suites_need_the_packages_of_the_extra(tmp_path: Path, plugin: str, package: str) -> None:
    (tmp_path / "test_it.py").write_text(EMPTIED)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "ajet_testing.conformance", "-p", f"no:{plugin}"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"TestWhole needs pytest-{package}: pip install 'agentjet[testing]>=0.1'" in done.stderr


def test_every_suite_has_a_limit_and_is_reported() -> None:
    names = [name for _, name, _ in pkgutil.iter_modules(ajet_testing.suites.__path__)]
    suites = {
        kind
        for name in names
        for _, kind in inspect.getmembers(
            importlib.import_module(f"ajet_testing.suites.{name}"), inspect.isclass
        )
        if kind.__module__.startswith("ajet_testing.suites.")
        and any(attribute.startswith("test") for attribute in vars(kind))
    }
    assert len(suites) >= 10
    assert {kind for kind in suites if not issubclass(kind, ConformanceSuite)} == set()
