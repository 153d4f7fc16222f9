"""The demo's agent: GridWalk, played over the official OpenAI SDK."""

from __future__ import annotations

from typing import Any

from agentjet.client import Episode, EpisodeOutcome, Task
from ajet_core.interfaces import WorldAnswer, WorldCall
from ajet_worlds import load_world
from ajet_worlds.agent import WorldAgent, episode_outcome
from ajet_worlds.grid import grid_outcome, walk_with
from ajet_worlds.gridwalk import GridWalk


class GridWalkAgent(WorldAgent):
    """A `WorldAgent` of the world ``grid``, with walks and tools that can be overridden.

    :param temperature: temperature of every model call.
    :param http_client: an async client of the HTTP library that the installed SDK uses, instead of
        a new one.
    :raises ConfigError: the SDK is not installed, or the settings of the world are invalid.
    """

    def __init__(self, temperature: float = 1.0, *, http_client: Any = None) -> None:
        super().__init__(load_world("grid"), temperature, http_client=http_client)

    async def __call__(self, task: Task, episode: Episode) -> EpisodeOutcome:
        """Walk the task of `task.id` with the model of `episode`."""
        walk = GridWalk(task.id)
        await self.walk(walk, episode)
        return episode_outcome(grid_outcome(walk))

    async def walk(self, walk: GridWalk, episode: Episode) -> None:
        """Call the model until the walk is over."""

        async def move(call: WorldCall, _: WorldAnswer) -> str:
            return await self.use_tool(walk, call.name, call.arguments)

        await walk_with(walk, self.chat(episode), move)

    async def use_tool(self, walk: GridWalk, name: str, arguments: str) -> str:
        """Return the reply to one tool call; override it for a slower world."""
        return walk.call(name, arguments)
