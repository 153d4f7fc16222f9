"""A world of a third party: its hooks, and the world."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ajet_core.interfaces import (
    Chat,
    ComponentSettings,
    World,
    WorldAnswer,
    WorldOutcome,
    WorldPrompt,
    WorldRecipe,
)
from ajet_core.plugin import WorldSpec, hookimpl
from ajet_core.protocol import AlgorithmConfig, BatchConfig


@hookimpl
def ajet_register_worlds() -> Sequence[WorldSpec]:
    return (
        WorldSpec(
            name="coin",
            target="tests.worlds.outside:CoinWorld",
            settings="tests.worlds.outside:CoinSettings",
            summary="Say which side is up",
            ability="reading",
        ),
    )


class CoinSettings(ComponentSettings):
    sides: tuple[str, ...] = ("heads", "tails", "edge")


class CoinWorld(World[CoinSettings]):
    recipe = WorldRecipe(
        steps=2,
        algorithm=AlgorithmConfig(),
        batch=BatchConfig(tasks=2, episodes_per_task=2),
    )

    async def play(self, task_id: str, chat: Chat) -> WorldOutcome:
        up = random.Random(task_id).choice(self.settings.sides)
        asked = [{"role": "user", "content": f"{up} is up"}]
        answer = await chat.ask(WorldPrompt(asked))
        success = float(answer.text == up)
        return WorldOutcome(reward=success, success=success)

    def expert(self, prompt: WorldPrompt, rng: random.Random) -> WorldAnswer:
        return WorldAnswer(prompt.messages[0]["content"].split()[0])

    def novice(self, prompt: WorldPrompt, rng: random.Random) -> WorldAnswer:
        return WorldAnswer(rng.choice(self.settings.sides))
