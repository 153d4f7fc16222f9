"""`docs/inspect.md` is true."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from ajet_cli.inspect.samples import row_type
from ajet_cli.main import cli
from ajet_server.page.page_data import MAX_TOKENS

TEXT = (Path(__file__).parents[2] / "docs" / "inspect.md").read_text(encoding="utf-8")
COMMANDS = sorted(set(re.findall(r"^ajet .+$", TEXT, re.MULTILINE)))


def test_the_page_shows_commands() -> None:
    assert len(COMMANDS) >= 8


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_works(
    command: str, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in (("RUN", str(run_dir)), ("EPISODE", "ep-aaa"), ("TASK", "task-1")):
        command = re.sub(rf"\b{name}\b", value, command)
    if "parquet" in command:
        pytest.importorskip("pyarrow")
    # The recorded run has one step.
    words = shlex.split(command.replace("--step 3", "--step 1"))
    result = CliRunner().invoke(cli, words[1:])
    assert result.exit_code == 0, result.output


def test_each_column_of_a_table_is_one() -> None:
    columns = re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE)
    known = row_type("timelines", text=True)
    assert [name for name in columns if name not in known and name != "Esc"] == []


def test_the_size_of_a_page_is_the_default() -> None:
    assert f"{MAX_TOKENS:,} tokens (`--max-tokens`)" in TEXT
