"""What the tests share: a source, and episodes of a scripted server rolled out by it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ajet_sources_harbor.settings import HarborSettings
from ajet_sources_harbor.source import HarborSource

from agentjet import AsyncSwarmClient, Task
from agentjet.client import Episode
from ajet_core.interfaces import EpisodeOutcome, ModelEndpoint
from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm

TASKS = Path(__file__).parent / "tasks"


def source(tasks: Path = TASKS, **settings: Any) -> HarborSource:
    """Return a source that is not open."""
    return HarborSource(HarborSettings(**settings), str(tasks))


def named(opened: HarborSource, name: str) -> Task:
    """Return a task of a source by its id."""
    (split,) = opened.splits()
    return next(task for task in opened.tasks(split) if task.id == name)


async def rolled_out(
    swarm: ScriptedSwarm, opened: HarborSource, tasks: Sequence[Task], *, each: int = 2
) -> Any:
    """Roll out training episodes, without retries."""

    async def agent(task: Task, episode: Episode) -> EpisodeOutcome:
        endpoint = ModelEndpoint(episode.base_url, episode.api_key, episode.model)
        return await opened.roll_out(task, endpoint)

    async with AsyncSwarmClient(swarm.url, swarm.token) as client:
        return await client.run_episodes_until_all_complete(
            list(tasks), agent, episodes_per_task=each, concurrency=4, retries=0
        )


def says(prompt: str, *texts: str) -> ScriptedReply:
    """Return the scripted answers to prompts with a pattern."""
    return ScriptedReply(prompt=prompt, says=tuple(f"{text}<|im_end|>" for text in texts))
