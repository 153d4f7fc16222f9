"""Environments of verifiers 0.1."""

from __future__ import annotations

import json
import shutil
from importlib.metadata import version
from pathlib import Path

import pytest
from ajet_sources_verifiers.settings import VerifiersSettings
from ajet_sources_verifiers.source import VerifiersSource
from rolling import endpoint, rolled_out, says

from agentjet import AsyncSwarmClient
from ajet_core.errors import ConfigError, EnvironmentFailedError
from ajet_core.interfaces import ModelEndpoint
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_testing.sources.interrupting import assert_evaluations_continue

if not version("verifiers").startswith("0.1."):
    pytest.skip("these environments are those of verifiers 0.1", allow_module_level=True)


def sums(kind: str) -> VerifiersSource:
    return VerifiersSource(VerifiersSettings(options={"kind": kind}), "legacy_sums")


async def test_tools_are_called_and_rewards_are_components(tmp_path: Path) -> None:
    use = json.dumps({"name": "add", "arguments": {"a": 1, "b": 41}})
    replies = [says("tool_response", "it is 42"), says("", f"<tool_call>\n{use}\n</tool_call>")]
    with ScriptedSwarm(tmp_path, replies) as swarm:
        async with sums("tool") as source:
            report = await rolled_out(swarm, source, source.tasks("train"))
        calls = [len(swarm.calls(one.episode_id)) for one in swarm.episodes()]
    assert not report.failures
    assert {one.outcome.reward for one in report.outcomes} == {1.0}
    assert report.outcomes[0].outcome.components["length"] == 8.0
    assert calls == [2] * 8


async def test_an_environment_answers_turns(tmp_path: Path) -> None:
    replies = [says("Are you sure", "42"), says("", "41")]
    with ScriptedSwarm(tmp_path, replies) as swarm:
        async with sums("turns") as source:
            report = await rolled_out(swarm, source, source.tasks("train")[:1])
    assert [one.outcome.reward for one in report.outcomes] == [1.0, 1.0]


async def test_rewards_of_a_group_compare_its_episodes(tmp_path: Path) -> None:
    with ScriptedSwarm(tmp_path, [says("", "short", "much longer")]) as swarm:
        async with sums("group") as source, AsyncSwarmClient(swarm.url, swarm.token) as client:
            assert source.in_groups
            task = source.tasks("train")[0]
            episodes = [await client.begin_episode(task.id, kind="eval") for _ in range(4)]
            states = [await source.roll_out(task, endpoint(one)) for one in episodes]
            outcomes = await source.score_group(task, states)
            for episode, outcome in zip(episodes, outcomes, strict=True):
                await client.end_episode(episode, outcome.reward)
        said = [swarm.text(swarm.calls(one.episode_id)[0]) for one in episodes]
    longest = any("much longer" in text for text in said)
    expected = [float("much longer" in text or not longest) for text in said]
    assert [outcome.reward for outcome in outcomes] == expected


async def test_a_reward_that_fails_aborts(tmp_path: Path) -> None:
    with ScriptedSwarm(tmp_path, [says("", "explode")]) as swarm:
        async with sums("tool") as source:
            report = await rolled_out(swarm, source, source.tasks("train")[:1], each=1)
    (failure,) = report.failures
    assert isinstance(failure.error, EnvironmentFailedError)
    assert "the reward exploded" in failure.reason


async def test_a_model_that_does_not_answer_aborts() -> None:
    async with sums("tool") as source:
        with pytest.raises(EnvironmentFailedError):
            await source.roll_out(
                source.tasks("train")[0], ModelEndpoint("http://127.0.0.1:9/v1", "none")
            )


async def test_ids_do_not_depend_on_the_position() -> None:
    async with sums("tool") as one, sums("turns") as other:
        assert [task.id for task in one.tasks("train")] == [
            task.id for task in other.tasks("train")
        ]


async def test_an_environment_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match="no_such_environment"):
        await VerifiersSource(VerifiersSettings(), "no_such_environment").open()


@pytest.mark.timeout(1800)
def test_evaluations_continue_after_ctrl_c_and_kills(tmp_path: Path) -> None:
    """With the real commands: nothing is lost or done twice, and no process is left."""
    shutil.copy(Path(__file__).parent / "legacy_sums.py", tmp_path)
    assert_evaluations_continue("verifiers:legacy_sums", tmp_path, lambda _: "It is 42.")
