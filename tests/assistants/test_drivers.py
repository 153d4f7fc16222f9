"""The suite `drivers`: the same study in-process, and by the tools of `ajet mcp`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

pytest.importorskip("mcp")
pytest.importorskip("scipy")

from ajet_cli.studies import drivers
from ajet_core.errors import ConfigError
from ajet_research.suites.mutations import finished_study


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(1800)
def test_all_ways_leave_the_same_ledger() -> None:
    # A test of its own has opencode, which is not everywhere.
    result = drivers.run_drivers(seed=0, size=4)
    assert result["problems"] == []
    assert tuple(result["drivers"]) == ("in-process", "memory", "stdio", "http")
    assert set(result["skipped"].values()) == {"size 4"}
    assert "opencode" in result["skipped"]
    assert (result["ledgers"], result["passed"]) == (1, True)
    # It is a whole study: registered, four trials, a look, a decision, and accepted words.
    assert min(result["drivers"].values()) > 12


def test_another_ledger_and_an_error_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def finished(world: str) -> drivers.Drive:
        def drive(project: Path) -> list[str]:
            finished_study(project / "topic.study", world=world)
            return []

        return drive

    def broken(project: Path) -> list[str]:
        raise ConfigError(f"no tools in {project.name}")

    monkeypatch.setattr(drivers, "DRIVERS", {"a": finished("clear"), "b": finished("clear")})
    same = drivers.run_drivers(seed=0)
    assert (same["ledgers"], same["passed"]) == (1, True)
    monkeypatch.setattr(drivers, "DRIVERS", {"a": finished("clear"), "b": finished("null")})
    other = drivers.run_drivers(seed=0)
    assert (other["ledgers"], other["problems"], other["passed"]) == (2, [], False)
    monkeypatch.setattr(drivers, "DRIVERS", {"a": finished("clear"), "b": broken})
    assert drivers.run_drivers(seed=0)["problems"] == ["b: ConfigError: no tools in b"]
    assert drivers.run_drivers(seed=0, size=1)["passed"]


def test_a_driver_whose_program_is_absent_is_named_and_the_suite_has_not_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finished(project: Path) -> list[str]:
        finished_study(project / "topic.study")
        return []

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(drivers, "DRIVERS", {"a": finished, "opencode": finished})
    result = drivers.run_drivers(seed=0)
    assert result["skipped"] == {"opencode": "opencode is not on PATH"}
    assert (list(result["drivers"]), result["problems"]) == (["a"], [])
    assert (result["ledgers"], result["passed"]) == (1, False)
    # Who leaves it out on purpose is not refused.
    result = drivers.run_drivers(seed=0, size=1)
    assert (result["skipped"], result["passed"]) == ({"opencode": "size 1"}, True)


@pytest.mark.processes
@pytest.mark.timeout(120)
async def test_a_server_that_says_much_is_not_blocked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Before it serves, it writes more than a pipe holds, and notes that it could.
    loud = (
        "import runpy, sys; sys.stderr.write('much\\n' * 2**17); open('said', 'w').close(); "
        "sys.argv[0] = 'ajet'; runpy.run_module('ajet_cli.main', run_name='__main__')"
    )
    monkeypatch.setattr(drivers, "_COMMAND", (sys.executable, "-P", "-c", loud, "mcp"))
    async with asyncio.timeout(100), drivers._over_http(tmp_path) as client:
        assert (await client.list_tools()).tools
    assert (tmp_path / "said").exists()
    assert (tmp_path / "mcp.log").stat().st_size > 2**16
