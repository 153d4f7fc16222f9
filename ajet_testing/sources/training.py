"""Rolling out the tasks of a source on a scripted swarm server, which trains on them."""

from __future__ import annotations

from typing import Any

from agentjet import AsyncSwarmClient
from agentjet.client import Episode, RunnerReport
from ajet_core.interfaces import EpisodeOutcome, ModelEndpoint, Task, TaskSource
from ajet_testing.scripted_swarm import ScriptedSwarm


async def train_all(
    source: TaskSource[Any], swarm: ScriptedSwarm, *, steps: int = 2
) -> RunnerReport:
    """Roll out two episodes of each task of the split ``train``, and wait for steps."""

    async def agent(task: Task, episode: Episode) -> EpisodeOutcome:
        endpoint = ModelEndpoint(episode.base_url, episode.api_key, episode.model)
        outcome: EpisodeOutcome = await source.roll_out(task, endpoint)
        return outcome

    async with AsyncSwarmClient(swarm.url, swarm.token) as client:
        report = await client.run_episodes_until_all_complete(
            source.tasks("train"), agent, episodes_per_task=2
        )
        await client.wait_for_step(steps)
    return report
