"""Runs the unchanged tutorial of an adapter's README with a model that calls its tool."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from agentjet.client import RunnerReport
from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_testing.suites.agent_suite import LAST_IS_TOOL, tool_call

__all__ = ["run_tutorial"]

_ADDING = (
    ScriptedReply(prompt=LAST_IS_TOOL, says=("It is 3.<|im_end|>",)),
    ScriptedReply(prompt='"name": "add"', says=(tool_call("add", '{"a": 1, "b": 2}'),)),
    ScriptedReply(prompt="", says=("I do not know.<|im_end|>",)),
)
"""The answer is always 3, which is right for four of the sixteen sums from 0 + 0 to 3 + 3."""
_RIGHT = 4
_SUMS = 16


def run_tutorial(
    readme: Path,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    replies: tuple[ScriptedReply, ...] = _ADDING,
) -> None:
    """Run the README's example, and check that four of its 16 sums are right."""
    example = re.search(
        r"<!-- example: tutorial -->\n```python\n(.*?)```", readme.read_text(), re.DOTALL
    )
    assert example is not None
    with ScriptedSwarm(directory, replies, batch={"tasks": 4, "episodes_per_task": 2}) as swarm:
        monkeypatch.setenv("AJET_URL", swarm.url)
        monkeypatch.setenv("AJET_TOKEN", swarm.token)
        scope: dict[str, Any] = {"__name__": "tutorial"}
        # Write a file, because some frameworks read the source code of tools.
        program = directory / "tutorial.py"
        program.write_text(example.group(1))
        exec(compile(example.group(1), str(program), "exec"), scope)  # noqa: S102 - what the README says
        report: RunnerReport = scope["main"]()
        assert [str(failure.error) for failure in report.failures] == []
        assert report.reward_mean == _RIGHT / _SUMS
        for result in report.outcomes:
            assert len(swarm.calls(result.episode.episode_id)) > 1
