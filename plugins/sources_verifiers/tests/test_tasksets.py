"""Tasksets of verifiers 0.4."""

from __future__ import annotations

import shutil
from importlib.metadata import version
from pathlib import Path

import pytest
from ajet_sources_verifiers.settings import VerifiersSettings
from ajet_sources_verifiers.source import VerifiersSource
from rolling import rolled_out, says

from ajet_core.errors import ConfigError, EnvironmentFailedError
from ajet_core.interfaces import ModelEndpoint
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_testing.sources.interrupting import assert_evaluations_continue

if not version("verifiers").startswith("0.4."):
    pytest.skip("tasksets are those of verifiers 0.4", allow_module_level=True)


def sums() -> VerifiersSource:
    return VerifiersSource(VerifiersSettings(), "sum_tasks")


async def test_episodes_have_the_rewards_and_metrics_of_their_task(tmp_path: Path) -> None:
    with ScriptedSwarm(tmp_path, [says("What is 0", "it is 41"), says("", "it is 42")]) as swarm:
        async with sums() as source:
            report = await rolled_out(swarm, source, source.tasks("train"))
        calls = [len(swarm.calls(one.episode_id)) for one in swarm.episodes()]
    assert not report.failures
    rewards = {one.task.id: one.outcome.reward for one in report.outcomes}
    assert rewards == {"sum0": 0.0, "sum1": 1.0, "sum2": 1.0, "sum3": 1.0}
    assert report.outcomes[0].outcome.components["length"] == 8.0
    assert calls == [1] * 8


async def test_a_reward_that_fails_aborts(tmp_path: Path) -> None:
    with ScriptedSwarm(tmp_path, [says("", "explode")]) as swarm:
        async with sums() as source:
            report = await rolled_out(swarm, source, source.tasks("train")[:1], each=1)
    assert [type(one.error) for one in report.failures] == [EnvironmentFailedError]


async def test_a_model_that_does_not_answer_aborts() -> None:
    async with sums() as source:
        with pytest.raises(EnvironmentFailedError):
            await source.roll_out(
                source.tasks("train")[0], ModelEndpoint("http://127.0.0.1:9/v1", "none")
            )


async def test_a_taskset_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match="no_such_tasks"):
        await VerifiersSource(VerifiersSettings(), "no_such_tasks").open()


async def test_other_generations_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ajet_sources_verifiers.source.version", lambda name: "0.5.1")
    with pytest.raises(ConfigError) as refused:
        await VerifiersSource(VerifiersSettings(), "sum_tasks").open()
    assert "verifiers 0.5.1 is installed" in str(refused.value)
    assert "pip install 'verifiers==0.1.*' or 'verifiers==0.4.*'" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.timeout(1800)
def test_evaluations_continue_after_ctrl_c_and_kills(tmp_path: Path) -> None:
    """With the real commands: nothing is lost or done twice, and no process is left."""
    shutil.copy(Path(__file__).parent / "sum_tasks.py", tmp_path)
    assert_evaluations_continue("verifiers:sum_tasks", tmp_path, lambda _: "It is 42.")
