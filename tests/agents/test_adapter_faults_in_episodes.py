"""Episodes of agents whose adapter fails while they run."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from agentjet.agents import train_async, trainable
from agentjet.client import AsyncSwarmClient
from ajet_core.errors import PluginError
from ajet_testing.scripted_swarm import ScriptedSwarm
from tests.agents import plain

pytestmark = pytest.mark.processes

NAMED = r"agent adapter 'plain' of plugin 'plain' \(distribution plain 0\)"


async def trained(swarm: ScriptedSwarm, agent: Any, tasks: list[str]) -> Any:
    async with AsyncSwarmClient(swarm.url, swarm.token) as client:
        return await train_async(
            trainable(agent, reward=lambda task, result: 1.0),
            tasks,
            client=client,
            episodes_per_task=1,
            retries=0,
            progress=False,
        )


def boom(*_: object) -> Any:
    raise ZeroDivisionError("boom")


@pytest.mark.parametrize("answer", [boom, lambda _: 42], ids=["raises", "no name"])
async def test_episodes_go_on_without_names(
    swarm: ScriptedSwarm,
    answer: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(plain.PlainAdapter, "current_agent", answer)
    report = await trained(swarm, plain.play, ["t510x", "t511x"])
    assert [str(failure.error) for failure in report.failures] == []
    for result in report.outcomes:
        calls = swarm.calls(result.episode.episode_id)
        assert {call.agent for call in calls} == {""}
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len([text for text in warnings if "current_agent" in text]) == 1


@pytest.mark.parametrize("method", ["fresh", "run"])
async def test_each_episode_of_the_agent_fails_with_one_error(
    swarm: ScriptedSwarm, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain.PlainAdapter, method, boom)
    if method == "run":
        # Its code is that of this module.
        monkeypatch.setattr(plain.PlainAdapter, "__module__", __name__)
    report = await trained(swarm, plain.worker, [f"t52{method}x", f"t53{method}x"])
    assert report.outcomes == []
    for failure in report.failures:
        assert isinstance(failure.error, PluginError)
        assert f"failed: {method} raised ZeroDivisionError: boom" in str(failure.error)
        assert isinstance(failure.error.__cause__, ZeroDivisionError)
    reasons = {one.reason for one in swarm.episodes() if one.task_id == f"t52{method}x"}
    assert all("plugin 'plain' (distribution plain 0)" in str(reason) for reason in reasons)
