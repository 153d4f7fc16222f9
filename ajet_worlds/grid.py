"""The worlds ``grid`` and ``slow-grid``: walks on a grid with the tool `move`."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from ajet_core.interfaces import (
    Chat,
    ComponentSettings,
    SettingsT_co,
    World,
    WorldAnswer,
    WorldCall,
    WorldOutcome,
    WorldPrompt,
    WorldRecipe,
)
from ajet_worlds.gridwalk import (
    DIRECTIONS,
    GOAL_REWARD,
    INVALID_REWARD,
    TOOLS,
    GridWalk,
    directions_in,
)
from ajet_worlds.tiny_grpo import TINY_GRPO
from ajet_worlds.turns import UseTool, use_tools

__all__ = [
    "GOOD_MOVE_SHARE",
    "GridWorld",
    "SlowGridSettings",
    "SlowGridWorld",
    "grid_outcome",
    "walk_with",
]

GOOD_MOVE_SHARE = 0.2
"""How often the novice moves towards the goal; otherwise it moves at random. After the warm-up a
model has learned about half of that: it hardly succeeds more often than a random walk, but it uses
the observation. With 0.1, models of some seeds never start to learn."""


class GridWorld(World[SettingsT_co]):
    """Walk to a goal whose direction is in every reply; the reward comes at the end."""

    recipe = WorldRecipe(
        steps=30,
        algorithm=TINY_GRPO,
    )
    reward_range = (INVALID_REWARD, GOAL_REWARD)

    async def play(self, task_id: str, chat: Chat) -> WorldOutcome:
        walk = GridWalk(task_id)
        delays = self.delays(task_id)

        async def move(call: WorldCall, _: WorldAnswer) -> str:
            if delay := next(delays):
                await chat.wait(delay)
            return walk.call(call.name, call.arguments)

        await walk_with(walk, chat, move)
        return grid_outcome(walk)

    def delays(self, task_id: str) -> Iterator[float]:  # noqa: ARG002 - for slower grids
        """Yield the seconds that each reply of the tool takes, for a new episode."""
        return itertools.repeat(0.0)

    def expert(self, prompt: WorldPrompt, rng: random.Random) -> WorldAnswer:
        return _move(rng.choice(_good_directions(prompt)))

    def novice(self, prompt: WorldPrompt, rng: random.Random) -> WorldAnswer:
        on_purpose = rng.random() < GOOD_MOVE_SHARE
        return _move(rng.choice(_good_directions(prompt) if on_purpose else list(DIRECTIONS)))


class SlowGridSettings(ComponentSettings):
    """Duration of the tool's replies: a truncated Pareto distribution.

    :param shortest: seconds.
    :param longest: seconds.
    :param tail: its shape; the lower, the more replies are slow.
    """

    shortest: Annotated[float, Field(ge=0)] = 0.04
    longest: Annotated[float, Field(ge=0)] = 2.0
    tail: Annotated[float, Field(gt=0)] = 1.1


class SlowGridWorld(GridWorld[SlowGridSettings]):
    """The grid with delays, which are the same for the same move of the same rollout of a task."""

    def __init__(self, settings: SlowGridSettings) -> None:
        super().__init__(settings)
        self._rollouts: dict[str, Iterator[int]] = defaultdict(itertools.count)

    def delays(self, task_id: str) -> Iterator[float]:
        least, most, tail = self.settings.shortest, self.settings.longest, self.settings.tail
        number = next(self._rollouts[task_id])
        rng = random.Random(f"slow-grid/{task_id}/{number}")  # noqa: S311 - a puzzle, not a secret
        while True:
            yield min(most, least * rng.paretovariate(tail))


async def walk_with(walk: GridWalk, chat: Chat, use_tool: UseTool) -> None:
    """Request moves from the model until `walk` is over; an answer without a move ends it."""
    last = await use_tools(chat, walk.messages(), TOOLS, use_tool, lambda: walk.done)
    if last is not None:
        walk.reject()


def grid_outcome(walk: GridWalk) -> WorldOutcome:
    """Convert the outcome of a walk."""
    outcome = walk.outcome()
    return WorldOutcome(
        reward=outcome.reward,
        success=float(outcome.success),
        components={"invalid": float(outcome.invalid), "moves": float(outcome.moves)},
    )


def _good_directions(prompt: WorldPrompt) -> list[str]:
    return directions_in(str(prompt.messages[-1]["content"]))


def _move(direction: str) -> WorldAnswer:
    return WorldAnswer(calls=(WorldCall.of("move", direction=direction),))
