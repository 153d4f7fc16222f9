"""`docs/mcp.md` is true: its example trains with a tool of a real MCP server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_testing.suites.agent_suite import tool_call

pytest.importorskip("mcp")
pytestmark = pytest.mark.processes
TEXT = (Path(__file__).parents[2] / "docs" / "mcp.md").read_text(encoding="utf-8")
SAYS = (
    ScriptedReply(prompt="<tool_response>\\s*1\\s", says=("It is 1.<|im_end|>",)),
    ScriptedReply(prompt="<tool_response>\\s*2\\s", says=("It is 2.<|im_end|>",)),
    ScriptedReply(prompt="What is 0", says=(tool_call("add", '{"a": 0, "b": 1}'),)),
    ScriptedReply(prompt="What is 1", says=(tool_call("add", '{"a": 1, "b": 1}'),)),
)


def example(name: str) -> str:
    found = re.search(rf"<!-- example: {name} -->\n```python\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    return found.group(1)


def test_the_example_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "calculator.py").write_text(example("calculator.py"))
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {"__name__": "example"}
    with ScriptedSwarm(tmp_path, SAYS) as swarm:
        monkeypatch.setenv("AJET_URL", swarm.url)
        monkeypatch.setenv("AJET_TOKEN", swarm.token)
        exec(compile(example("agent"), "mcp.md", "exec"), scope)
        report = scope["main"]()
        calls = [len(swarm.calls(episode.episode_id)) for episode in swarm.episodes()]
    assert report.failures == []
    assert report.reward_mean == 1.0
    assert calls == [2] * 4
