"""The example of docs/agents.md, run as it stands."""

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


def test_the_example_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = re.search(r"<!-- example: agents -->\n```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert found is not None
    batch = {"tasks": 8, "episodes_per_task": 2}
    with ScriptedSwarm(tmp_path, SAYS, batch=batch) as swarm:
        monkeypatch.setenv("AJET_URL", swarm.url)
        monkeypatch.setenv("AJET_TOKEN", swarm.token)
        scope: dict[str, Any] = {"__name__": "example"}
        exec(compile(found.group(1), str(DOCS), "exec"), scope)
        report = scope["main"]()
    assert len(report.outcomes) == 2 * 8 * 2
    assert report.reward_mean == 1 / 8
