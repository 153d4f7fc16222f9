"""Every test has a tier, every tier is run, and unit tests keep to theirs."""

from __future__ import annotations

import configparser
import json
import re
import socket
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support import tiers
from tests.support.tiers import (
    MOST_SECONDS,
    TIERS,
    Guard,
    check_seconds,
    examples,
    in_part,
    tier_of,
    without_unit_tests,
)

ROOT = Path(__file__).parents[1]
# The environments of tox with tests of this directory, as continuous integration runs them.
ENVIRONMENTS = ("core-py{311,312,313}", "torch", "pairs")
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
LIST = """
import json, sys, pytest

class Lister:
    def pytest_collection_finish(self, session):
        with open(sys.argv[1], "w") as file:
            json.dump({i.nodeid: [m.name for m in i.iter_markers()] for i in session.items}, file)

sys.exit(pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", "tests"], [Lister()]))
"""


def selections(text: str) -> list[str]:
    """What the commands of a text select, of the tests of this directory."""
    lines = [line for line in text.splitlines() if "plugins/" not in line]
    found = re.findall(r'-m (?!pytest)(?:"([^"]+)"|(\w+))', "\n".join(lines))
    return [quoted or word for quoted, word in found]


def selected(expression: str, markers: list[str]) -> bool:
    """Whether ``-m`` with this expression takes a test: its operators are those of Python."""
    return bool(eval(expression, {}, defaultdict(bool, dict.fromkeys(markers, True))))


@pytest.mark.parametrize("count", [1, 2, 7])
def test_each_file_is_in_one_part_and_parts_have_one_size(count: int) -> None:
    parts = [
        [path for path in TESTS if in_part(path, f"{number}/{count}")]
        for number in range(1, count + 1)
    ]
    assert sorted(path for part in parts for path in part) == TESTS
    sizes = [sum(path.stat().st_size for path in part) for part in parts]
    assert max(sizes) <= 1.2 * min(sizes)


def test_without_parts_all_files_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEST_PART", raising=False)
    assert all(in_part(path) for path in TESTS)


def test_property_tests_have_no_limit_of_time() -> None:
    assert settings().deadline is None
    assert settings(max_examples=7).deadline is None


def every_test(config: pytest.Config, directory: Path) -> dict[str, list[str]]:
    """The markers of each test of this directory."""
    here = config.stash[tiers.COLLECTED]
    files = {name.partition("::")[0] for name in here}
    if {path.relative_to(ROOT).as_posix() for path in TESTS} <= files:
        return here
    # This session was asked for some of the files alone.
    listing = directory / "tests.json"
    subprocess.run([sys.executable, "-c", LIST, listing], cwd=ROOT, check=True)
    collected: dict[str, list[str]] = json.loads(listing.read_text())
    return collected


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_every_test_has_one_tier_and_is_run_by_continuous_integration_or_nightly(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    collected = every_test(request.config, tmp_path)
    assert len(collected) > 1000
    assert {name for name, marks in collected.items() if len({*TIERS} & {*marks}) != 1} == set()
    # `-m unit` does not import these files.
    unread = {path.relative_to(ROOT).as_posix() for path in TESTS if without_unit_tests(path)}
    assert len(unread) > 10
    units = {name.partition("::")[0] for name, marks in collected.items() if "unit" in marks}
    assert units & unread == set()
    texts = {name.partition("::")[0] for name, marks in collected.items() if "files" in marks}
    assert texts == set(tiers.FILES)
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini", encoding="utf-8")
    of_tox = [selections(tox[f"testenv:{name}"]["commands"]) for name in ENVIRONMENTS]
    assert all(of_tox)
    assert "make --no-print-directory unit" in tox["testenv:torch"]["commands"]
    of_make = selections((ROOT / "Makefile").read_text(encoding="utf-8"))
    nightly = [
        "nightly and not pairs",
        *selections(tox["testenv:pairs-{torch,trl,verl}"]["commands"]),
    ]
    assert {"unit", nightly[0]} <= {*of_make}
    run = ["unit", *(expression for found in of_tox for expression in found), *nightly]
    left_out = {
        name
        for name, marks in collected.items()
        if not any(selected(expression, marks) for expression in run)
    }
    assert left_out == set()


@pytest.mark.parametrize(
    ("markers", "fixtures", "tier"),
    [
        ((), (), "unit"),
        (("parametrize",), ("tmp_path",), "unit"),
        ((), ("server", "tmp_path"), "integration"),
        (("torch",), (), "integration"),
        (("processes",), (), "integration"),
        (("slow",), (), "integration"),
        (("nightly", "processes"), ("server",), "nightly"),
    ],
)
def test_a_tier_follows_from_what_a_test_takes(markers, fixtures, tier) -> None:
    assert tier_of(set(markers), set(fixtures)) == tier


def forgiven() -> None:
    """What the running test has done is no failure."""
    assert tiers._guard.offences
    tiers._guard.offences.clear()


def test_a_unit_test_can_start_no_process(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="this test starts a process"):
        subprocess.run(["touch", str(tmp_path / "made")], check=True)
    assert not (tmp_path / "made").exists()
    forgiven()


def test_a_unit_test_can_open_no_socket_to_connect_to() -> None:
    with (
        socket.socket() as listener,
        pytest.raises(pytest.fail.Exception, match="others can connect to"),
    ):
        listener.bind(("127.0.0.1", 0))
    forgiven()


def test_make_test_generates_a_quarter_of_the_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    for profile, wanted in {"quick": [50, 1], "": [200, 3], "thorough": [200, 3]}.items():
        monkeypatch.setattr(tiers, "PROFILE", profile)
        assert [examples(200), examples(3)] == wanted


@pytest.mark.parametrize("exempt", ["", "HYPOTHESIS_PROFILE"])
def test_a_unit_test_may_take_little_cpu_time(exempt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HYPOTHESIS_PROFILE", raising=False)
    monkeypatch.delitem(sys.modules, "coverage", raising=False)
    check_seconds(MOST_SECONDS)
    if exempt:
        monkeypatch.setenv(exempt, "thorough")
        check_seconds(MOST_SECONDS + 0.1)
        return
    with pytest.raises(pytest.fail.Exception, match=r"this unit test took 12\.1 s of CPU time"):
        check_seconds(MOST_SECONDS + 0.1)


@pytest.mark.xfail(strict=True, raises=pytest.fail.Exception, reason="it takes more than it may")
def test_a_unit_test_that_takes_more_cpu_time_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HYPOTHESIS_PROFILE", raising=False)
    monkeypatch.delitem(sys.modules, "coverage", raising=False)
    monkeypatch.setattr(tiers, "MOST_SECONDS", -1.0)


def test_a_refusal_that_is_caught_fails_the_test_nevertheless() -> None:
    guard = Guard()
    phase = guard.watch()
    next(phase)
    with pytest.raises(pytest.fail.Exception):
        guard.audit("subprocess.Popen", ())
    with pytest.raises(pytest.fail.Exception, match="starts a process"):
        phase.send(None)
    assert guard.offences is None
