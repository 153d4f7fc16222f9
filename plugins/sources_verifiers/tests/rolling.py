"""Episodes of a scripted server, rolled out by a source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ajet_sources_verifiers.source import VerifiersSource

from agentjet import AsyncSwarmClient, Task
from agentjet.client import Episode
from ajet_core.interfaces import EpisodeOutcome, ModelEndpoint
from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm


def endpoint(episode: Episode) -> ModelEndpoint:
    """Return the endpoint of an episode."""
    return ModelEndpoint(episode.base_url, episode.api_key, episode.model)


async def rolled_out(
    swarm: ScriptedSwarm, source: VerifiersSource, tasks: Sequence[Task], *, each: int = 2
) -> Any:
    """Roll out training episodes, without retries."""

    async def agent(task: Task, episode: Episode) -> EpisodeOutcome:
        return await source.roll_out(task, endpoint(episode))

    async with AsyncSwarmClient(swarm.url, swarm.token) as client:
        return await client.run_episodes_until_all_complete(
            list(tasks), agent, episodes_per_task=each, concurrency=8, retries=0
        )


def says(prompt: str, *texts: str) -> ScriptedReply:
    """Return the scripted answers to prompts with a pattern."""
    return ScriptedReply(prompt=prompt, says=tuple(f"{text}<|im_end|>" for text in texts))
