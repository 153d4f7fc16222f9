"""`docs/security.md` names tests, settings and commands that exist."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from ajet_cli.main import cli
from ajet_core.protocol import TokenQuotas
from ajet_installation.settings import ServerSettings

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
TESTS = sorted(set(re.findall(r"`([\w./]+\.py)::(\w+)`", TEXT)))
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^ajet token .*$", TEXT, re.MULTILINE)
COMMANDS_OF_README = re.findall(r"^ajet token .*$", README, re.MULTILINE)


@pytest.mark.parametrize(("file", "name"), TESTS)
def test_a_test_that_is_named_is_there(file: str, name: str) -> None:
    tree = ast.parse((Path(__file__).parent / file).read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    assert name in {node.name for node in tree.body if isinstance(node, functions)}


def test_every_threat_has_a_test() -> None:
    section = TEXT.partition("## Threats, defences, tests")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 20
    assert [row for row in rows if ".py::test_" not in row] == []


@pytest.mark.parametrize(("commands", "count"), [(COMMANDS, 4), (COMMANDS_OF_README, 2)])
def test_the_commands_do_what_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: list[str], count: int
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(commands) == count
    made = ""
    for command in commands:
        args = [*shlex.split(command)[1:], "--run-dir", "run"]
        if "revoke" in args:
            args = ["token", "revoke", made, "--run-dir", "run"]
        done = CliRunner().invoke(cli, args)
        assert done.exit_code == 0, done.output
        if "create" in args:
            made = done.stdout.partition("ajet-tk-")[2].partition(".")[0]


def test_limits_have_the_settings_and_defaults_that_are_told() -> None:
    section = TEXT.partition("## Limits for everybody")[2].partition("\n## ")[0]
    units = {"": 1, "MiB": 2**20, "GiB": 2**30}
    told = re.findall(r"`(\w+)` \((\d+) ?(\w*)\)", section)
    assert len(told) >= 8
    for name, number, unit in told:
        assert ServerSettings.model_fields[name].default == int(number) * units[unit], name
    for name in re.findall(r"`((?:max|request|call)_\w+)`", section):
        assert name in ServerSettings.model_fields


def test_all_quotas_are_told() -> None:
    for name in TokenQuotas.model_fields:
        assert f"`{name}`" in TEXT
