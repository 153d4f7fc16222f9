"""The examples of docs/agents.md, run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm

pytestmark = pytest.mark.processes

DOCS = Path(__file__).parents[2] / "docs" / "agents.md"
SAYS = (ScriptedReply(prompt="", says=("apple<|im_end|>",)),)


def example(name: str) -> dict[str, Any]:
    """The names that an example defines."""
    found = re.search(
        rf"<!-- example: {name} -->\n```python\n(.*?)```", DOCS.read_text(), re.DOTALL
    )
    assert found is not None
    scope: dict[str, Any] = {"__name__": "example"}
    exec(compile(found.group(1), str(DOCS), "exec"), scope)
    return scope


def test_the_example_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = {"tasks": 8, "episodes_per_task": 2}
    with ScriptedSwarm(tmp_path, SAYS, batch=batch) as swarm:
        monkeypatch.setenv("AJET_URL", swarm.url)
        monkeypatch.setenv("AJET_TOKEN", swarm.token)
        report = example("agents")["main"]()
    assert len(report.outcomes) == 2 * 8 * 2
    assert report.reward_mean == 1 / 8


def test_the_example_of_readers_and_judges_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "train.jsonl"
    data.write_text("".join(f'{{"question": "1 + {n}?", "answer": {1 + n}}}\n' for n in range(8)))
    says = (ScriptedReply(prompt="", says=("1 + 1 is 2.<|im_end|>",)),)
    batch = {"tasks": 8, "episodes_per_task": 2}
    with ScriptedSwarm(tmp_path, says, batch=batch) as swarm:
        monkeypatch.setenv("AJET_URL", swarm.url)
        monkeypatch.setenv("AJET_TOKEN", swarm.token)
        report = example("registered")["main"](str(data))
    assert len(report.outcomes) == 8 * 2
    assert report.reward_mean == 1 / 8
