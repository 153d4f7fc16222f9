"""A server whose model knows the sums, and a source of sums in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ajet_cli.main import cli
from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm

REPLIES = (
    ScriptedReply(prompt=r"1 \+ 1", says=("It is 2<|im_end|>",)),
    ScriptedReply(prompt=r"2 \+ 2", says=("4<|im_end|>",)),
    ScriptedReply(prompt="", says=("7<|im_end|>",)),
)
ROWS = """{"id": "a", "question": "1 + 1", "answer": "2", "difficulty": 0.1}
{"id": "b", "question": "2 + 2", "answer": "4"}
{"id": "c", "question": "3 + 3", "answer": "6"}
"""


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with rows, which is the working directory."""
    (tmp_path / "rows.jsonl").write_text(ROWS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedSwarm]:
    batch = {"tasks": 64, "episodes_per_task": 2}
    with ScriptedSwarm(tmp_path_factory.mktemp("swarm"), REPLIES, batch=batch) as swarm:
        yield swarm


def ajet(*arguments: str, **environ: str) -> Result:
    """Run a command of ``ajet``."""
    return CliRunner().invoke(cli, list(arguments), env=environ, catch_exceptions=False)
