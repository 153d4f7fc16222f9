"""Assign each test to its tier.

``unit`` tests start no process, open no socket that others can connect to, and use no model.
``integration`` tests are all others. ``nightly`` tests take minutes, and the ``integration`` tests
cover a part of what they test.

A test's tier follows from its fixtures and from its markers. A test that starts a process or
listens without one of these fixtures needs the marker ``processes``; without the marker, it fails.
Tests of the tier ``nightly`` always have the marker ``nightly``.

Integration tests with the marker ``every_python`` run on each version of Python.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Generator
from typing import Any

import pytest

TIERS = ("unit", "integration", "nightly")

# Fixtures that start a process or listen.
FIXTURES = frozenset(
    {"server", "servers", "served", "swarm", "two", "killed_writer", "other_process"}
)
# Markers of tests that need a model.
MODELS = frozenset({"torch", "pairs"})
NEEDS = MODELS | {"processes"}
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

_GUARDED = {
    "os.exec": "starts a process",
    "os.fork": "starts a process",
    "os.forkpty": "starts a process",
    "os.posix_spawn": "starts a process",
    "os.system": "starts a process",
    "subprocess.Popen": "starts a process",
    "socket.bind": "opens a socket that others can connect to",
}


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


def tier_of(markers: set[str], fixtures: set[str]) -> str:
    """The tier of a test with these markers and fixtures."""
    if "nightly" in markers:
        return "nightly"
    return "integration" if NEEDS & markers or FIXTURES & fixtures else "unit"


def pytest_configure() -> None:
    """Audit hooks stay as long as the process."""
    # Starts a process when it is first asked for, by the SDK of OpenAI for example.
    platform.processor()
    sys.addaudithook(_guard.audit)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test with its tier, before ``-m`` selects."""
    markers = {mark.name for mark in item.iter_markers()}
    tier = tier_of(markers, set(getattr(item, "fixturenames", ())))
    item.add_marker(tier)
    if tier == "integration" and item.nodeid.startswith(EVERY_PYTHON) and not MODELS & markers:
        item.add_marker("every_python")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    """Watch the fixtures of a unit test."""
    return (yield from _guard.watch()) if _is_unit(item) else (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Watch a unit test."""
    return (yield from _guard.watch()) if _is_unit(item) else (yield)


def _is_unit(item: pytest.Item) -> bool:
    return item.get_closest_marker("unit") is not None
