"""Assign each test to its tier.

``unit`` tests start no process, open no socket that others can connect to, and use no model.
``integration`` tests are all others. ``nightly`` tests take minutes, and the ``integration`` tests
cover a part of what they test.

A test's tier follows from its fixtures and from its markers. A test that starts a process or
listens without one of these fixtures needs the marker ``processes``; without the marker, it fails.
Tests of the tier ``nightly`` always have the marker ``nightly``.

Integration tests with the marker ``every_python`` run on each version of Python. Unit tests of the
repository's files, which no version of Python lets fail, have the marker ``files`` and run on one.

A unit test that takes more than `MOST_SECONDS` of CPU time fails, too, unless it has the marker
``slow``, which makes it an integration test.

Property tests generate a quarter of their examples if ``HYPOTHESIS_PROFILE`` is ``quick``, as in
``make test``.
"""

from __future__ import annotations

import gc
import os
import platform
import re
import sys
import time
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

TIERS = ("unit", "integration", "nightly")

# Fixtures that start a process or listen.
FIXTURES = frozenset(
    {"server", "servers", "served", "swarm", "two", "killed_writer", "other_process"}
)
# Markers of tests that need a model.
MODELS = frozenset({"torch", "pairs"})
NEEDS = MODELS | {"processes", "slow"}
# Tests of code on Python's modules for processes, sockets, TLS, signals and SQLite.
EVERY_PYTHON = (
    "tests/cli/test_cli_process.py",
    "tests/client/test_concurrency.py",
    "tests/client/test_import.py",
    "tests/embedded/test_sqlite_durability.py",
    "tests/security/test_connections.py",
    "tests/security/test_tls.py",
    "tests/server/test_kill.py",
    "tests/server/test_run.py",
    "tests/worker/",
)

_ROOT = Path(__file__).parents[2]

# Tests of texts and of the shape of the code.
FILES = (
    "tests/test_layers.py",
    "tests/test_public_names.py",
    "tests/test_words.py",
)
MOST_SECONDS = 12.0
"""CPU time that a unit test may take, with what it imports first. Most take milliseconds. On a slow
or busy machine, CPU time counts two or three times as much."""

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "")
"""``quick`` or ``thorough``; "" is what continuous integration runs."""
_OF_DEFAULT = 100
# Of the examples of a property, in ``quick``.
_PART = 4
# So many objects are created between two looks for garbage. With 700, as in Python, looking takes
# almost twice as long.
_GARBAGE = 20_000

_WITHOUT_UNIT_TESTS = re.compile(
    r"^pytestmark = (\[[^]]*|.*)\bmark\.(torch|pairs|processes|slow|nightly)\b", re.M
)
_GUARDED = {
    "os.exec": "starts a process",
    "os.fork": "starts a process",
    "os.forkpty": "starts a process",
    "os.posix_spawn": "starts a process",
    "os.system": "starts a process",
    "subprocess.Popen": "starts a process",
    "socket.bind": "opens a socket that others can connect to",
}


def examples(most: int) -> int:
    """Return how many examples a property test generates, of `most`."""
    return max(1, most // _PART) if PROFILE == "quick" else most


class Guard:
    """Refuses actions that would make unit tests slow.

    :ivar offences: the actions of the running unit test that were refused; None while none runs.
    """

    def __init__(self) -> None:
        self.offences: list[str] | None = None

    def audit(self, event: str, _: tuple[Any, ...]) -> None:
        """Refuse actions that unit tests must not take; this is an audit hook of Python."""
        if self.offences is not None and event in _GUARDED:
            self.offences.append(_GUARDED[event])
            raise _refusal(self.offences)

    def watch(self) -> Generator[None, Any, Any]:
        """Watch a phase of a unit test, which also fails if the tested code caught the refusal."""
        found: list[str] = []
        self.offences = found
        try:
            result = yield
        finally:
            self.offences = None
        if found:
            raise _refusal(found)
        return result


def _refusal(offences: list[str]) -> BaseException:
    return pytest.fail.Exception(
        f"this test {offences[0]}, which unit tests do not: give it the marker `processes`, or a "
        "fixture that tests/support/tiers.py knows",
        pytrace=True,
    )


_guard = Guard()

COLLECTED = pytest.StashKey[dict[str, list[str]]]()
"""The markers of each test that this session has collected, also of those it does not select."""


def tier_of(markers: set[str], fixtures: set[str]) -> str:
    """The tier of a test with these markers and fixtures."""
    if "nightly" in markers:
        return "nightly"
    return "integration" if NEEDS & markers or FIXTURES & fixtures else "unit"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files without unit tests, nor what they import, if only those are asked for."""
    wanted = config.option.markexpr
    if not (wanted == "unit" or wanted.endswith("or every_python")):
        return None
    if not collection_path.name.startswith("test_"):
        return None
    if not in_part(collection_path):
        return True
    if wanted != "unit" and on_every_python(collection_path):
        return None
    return without_unit_tests(collection_path) or None


def in_part(path: Path, part: str | None = None) -> bool:
    """Whether a file is in the part of the tests that this process runs.

    :param part: such as ``2/4``, by default the variable ``TEST_PART``; "" is all of them.
    """
    number, _, count = (os.environ.get("TEST_PART", "") if part is None else part).partition("/")
    return not count or _place(path) % int(count) == int(number) - 1


@cache
def _places() -> dict[Path, int]:
    """Number all files by size, so that parts take about as long as each other."""
    files = sorted((_ROOT / "tests").rglob("test_*.py"), key=lambda path: path.stat().st_size)
    return {path: place for place, path in enumerate(files)}


def _place(path: Path) -> int:
    return _places().get(path, 0)


def on_every_python(path: Path) -> bool:
    """Whether a file has tests that run on each version of Python."""
    where = path.as_posix().removeprefix(f"{_ROOT.as_posix()}/")
    return where.startswith(EVERY_PYTHON) or "mark.every_python" in path.read_text("utf-8")


def without_unit_tests(path: Path) -> bool:
    """Whether a mark of a file gives all its tests another tier."""
    return bool(_WITHOUT_UNIT_TESTS.search(path.read_text(encoding="utf-8")))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Look for garbage among what tests create alone, not among modules and tests, which stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(_GARBAGE)
        gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    """Audit hooks stay as long as the process."""
    config.stash[COLLECTED] = {}
    # Starts a process when it is first asked for, by the SDK of OpenAI for example.
    platform.processor()
    sys.addaudithook(_guard.audit)
    from hypothesis import settings

    # An example takes longer than Hypothesis's limit of 200 ms if the machine is busy.
    settings.register_profile("agentjet", max_examples=examples(_OF_DEFAULT), deadline=None)
    settings.load_profile("agentjet")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test with its tier, before ``-m`` selects."""
    markers = {mark.name for mark in item.iter_markers()}
    tier = tier_of(markers, set(getattr(item, "fixturenames", ())))
    item.add_marker(tier)
    if tier == "integration" and item.nodeid.startswith(EVERY_PYTHON) and not MODELS & markers:
        item.add_marker("every_python")
    if tier == "unit" and item.nodeid.startswith(FILES):
        item.add_marker("files")
    item.config.stash[COLLECTED][item.nodeid] = [mark.name for mark in item.iter_markers()]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    """Watch the fixtures of a unit test."""
    return (yield from _guard.watch()) if _is_unit(item) else (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Watch a unit test."""
    if not _is_unit(item):
        return (yield)
    before = time.process_time()
    result = yield from _guard.watch()
    check_seconds(time.process_time() - before)
    return result


def check_seconds(seconds: float) -> None:
    """Fail if a unit test took too much CPU time, however long it waited for other processes."""
    # These run more code, or more examples.
    measured = "coverage" not in sys.modules and os.environ.get("HYPOTHESIS_PROFILE") != "thorough"
    if measured and seconds > MOST_SECONDS:
        pytest.fail(
            f"this unit test took {seconds:.1f} s of CPU time, and may take {MOST_SECONDS:g} s: "
            "give it the marker `slow`, or test less",
            pytrace=False,
        )


def _is_unit(item: pytest.Item) -> bool:
    return item.get_closest_marker("unit") is not None
