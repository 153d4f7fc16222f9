"""What all suites have in common: time limits, and a report of the tests that a suite did not run.

This module is a plugin of pytest, which pytest finds by itself where agentjet is installed. It adds
a time limit to each test of a suite, and a section to pytest's summary: which tests of a suite were
skipped, overridden, removed or deselected. A suite that is emptied in this way is therefore seen.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import pytest

from ajet_testing.other_process import in_another_process

__all__ = ["ConformanceSuite", "pytest_configure"]

_SUITES = "ajet_testing."
_NEEDED = {"asyncio": "pytest-asyncio", "timeout": "pytest-timeout"}
_KEY = "ajet_suites"


class ConformanceSuite:
    """The base class of the suites.

    :cvar time_limit: seconds that a test may take, with its fixtures, before it fails. The marker
        ``timeout`` and pytest's setting ``timeout`` come first.
    """

    time_limit: ClassVar[float] = 120.0

    @pytest.fixture
    def other_process(self) -> Callable[..., Any]:
        """Call a method of this class by its name in another process, and return its result."""
        return functools.partial(in_another_process, self)


@dataclass
class _Suite:
    """A class of tests that runs a suite.

    :param name: the class of `ajet_testing` that it derives from.
    :param tests: names of the suite's tests.
    :param replaced: those that the class defines itself, with the class that does.
    :param items: names of tests by node id, for all that were collected.
    """

    name: str
    tests: list[str]
    replaced: dict[str, str]
    items: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, kind: type) -> _Suite:
        ours = [base for base in kind.__mro__ if base.__module__.startswith(_SUITES)]
        tests = sorted({name for base in ours for name in vars(base) if name.startswith("test")})
        replaced = {}
        for name in tests:
            owner = next(base for base in kind.__mro__ if name in vars(base))
            if owner not in ours:
                how = "removed" if vars(owner)[name] is None else "overridden"
                replaced[name] = f"{how} by {owner.__qualname__}"
        return cls(ours[0].__name__, tests, replaced)


class _Report:
    """The suites of a session, and which of their tests did not run.

    With pytest-xdist, workers collect the tests, and the process that prints the summary receives
    the results.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.suites: dict[str, _Suite] = {}
        self.missed: dict[str, str] = {}
        self.ran: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Note the suites, before any of their tests are deselected, and limit the tests' time.

        :raises pytest.UsageError: a plugin that suites need is missing.
        """
        for item in items:
            kind = getattr(item, "cls", None)
            if item.parent is None or kind is None or not issubclass(kind, ConformanceSuite):
                continue
            has = self.config.pluginmanager.hasplugin
            if absent := [name for plugin, name in _NEEDED.items() if not has(plugin)]:
                raise pytest.UsageError(
                    f"{kind.__qualname__} needs {' and '.join(absent)}: "
                    "pip install 'agentjet[testing]>=0.1'"
                )
            suite = self.suites.setdefault(item.parent.nodeid, _Suite.of(kind))
            suite.items[item.nodeid] = getattr(item, "originalname", item.name)
            if not self._has_limit and item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(kind.time_limit))

    @property
    def _has_limit(self) -> bool:
        """Whether the user has set a limit for all tests."""
        chosen = (self.config.getoption("timeout", None), self.config.getini("timeout"))
        return any(chosen) or "PYTEST_TIMEOUT" in os.environ

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note whether a test ran, or why it did not."""
        if hasattr(report, "wasxfail"):
            why = report.wasxfail.removeprefix("reason: ")
            self.missed[report.nodeid] = (
                f"expected to fail: {why}" if why else ("expected to fail, without a reason")
            )
        elif report.skipped:
            text = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
            why = text.removeprefix("Skipped").removeprefix(":").strip()
            explained = why and why != "unconditional skip"
            self.missed[report.nodeid] = (
                f"skipped: {why}" if explained else ("skipped without a reason")
            )
        elif report.when == "call" or report.failed:
            self.ran.add(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Send the suites from a worker of pytest-xdist to the process that prints the summary."""
        output = getattr(self.config, "workeroutput", None)
        if output is not None:
            output[_KEY] = {node: asdict(suite) for node, suite in self.suites.items()}

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Receive the suites from a worker of pytest-xdist."""
        sent: Mapping[str, Any] = getattr(node, "workeroutput", {}).get(_KEY, {})
        self.suites.update({name: _Suite(**suite) for name, suite in sent.items()})

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print which tests of suites did not run."""
        if not self.config.option.collectonly and (lines := list(self._lines())):
            terminalreporter.section("tests of suites that did not run")
            for line in lines:
                terminalreporter.line(line)

    def _lines(self) -> Iterator[str]:
        untouched = []
        for node, suite in sorted(self.suites.items()):
            if not suite.items.keys() & (self.ran | self.missed.keys()):
                untouched.append(f"{node} ({suite.name})")
                continue
            why = {name: self._why(suite, name) for name in suite.tests}
            whole = sum(not reasons for reasons in why.values())
            if whole < len(why):
                # pytest counts cases: a function with parameters is several of them.
                ran = len(suite.items.keys() & self.ran)
                yield (
                    f"{node} ({suite.name}): {whole} of the suite's {len(why)} functions ran; "
                    f"the class ran {ran} of its {len(suite.items)} cases"
                )
            for name, reasons in why.items():
                yield from (f"  {name}: {reason}" for reason in reasons)
        if untouched:
            yield f"deselected completely: {', '.join(untouched)}"

    def _why(self, suite: _Suite, name: str) -> list[str]:
        """Return why a test did not run, or did not with some of its parameters; [] if it did."""
        nodes = [node for node, test in suite.items.items() if test == name]
        missed = Counter(
            self.missed.get(node, "deselected, or pytest stopped before it")
            for node in nodes
            if node not in self.ran
        )
        # A subclass that gives a test a marker, to skip it with a reason, replaces it as well.
        if name in suite.replaced and (not nodes or missed.total() < len(nodes)):
            return [suite.replaced[name]]
        if not nodes:
            return ["not collected"]
        part = "" if len(nodes) == 1 else f" ({{}} of {len(nodes)})"
        return [reason + part.format(count) for reason, count in missed.items()]


def pytest_configure(config: pytest.Config) -> None:
    """Begin a report."""
    config.pluginmanager.register(_Report(config), "ajet-suites")
