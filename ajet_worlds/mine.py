"""The world ``mine``: choose the right tool for each rock at a cost per call, and stop in time.

Rich layers are above poor ones. Soft rock needs the pick, hard rock the drill; the wrong tool costs
the same and breaks nothing. Every use costs 0.2; a rich layer contains 0.8, a poor one 0.1. The
best policy therefore digs through the rich layers and stops at the first poor one. Every call has a
separate reward (`WorldOutcome.call_rewards`), but the episode has none: without credit by call
nothing is learned.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ajet_core.interfaces import (
    Chat,
    World,
    WorldAnswer,
    WorldCall,
    WorldOutcome,
    WorldPrompt,
    WorldRecipe,
)
from ajet_worlds.tiny_grpo import TINY_GRPO
from ajet_worlds.turns import use_tools

TOOL_FOR = {"soft": "pick", "hard": "drill"}
STOP = "stop"
NAMES = (*TOOL_FOR.values(), STOP)
COST = 0.2
WORTH = {"rich": 0.8, "poor": 0.1}
MOST_RICH = 3
MAX_CALLS = 6
INVALID_REWARD = -0.5
GOOD_CHOICE_SHARE = 0.35
"""How often the novice chooses on purpose. With 0.2 a model only considers rich or poor."""

SYSTEM_PROMPT = "Dig while it pays."
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": {}}},
    }
    for name in NAMES
]


@dataclass(slots=True)
class Mine:
    """One shaft.

    :ivar rewards: rewards of calls, by the id of their answer.
    """

    layers: Sequence[tuple[str, str]]
    depth: int = 0
    calls: int = 0
    done: bool = False
    invalid: bool = False
    rewards: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, task_id: str) -> Mine:
        """Create the shaft of a task: some rich layers, then poor ones."""
        rng = random.Random(f"mine/{task_id}")  # noqa: S311 - a puzzle, not a secret
        rich = rng.randrange(MOST_RICH + 1)
        kinds = ["rich"] * rich + ["poor"] * MAX_CALLS
        return cls([(kind, rng.choice(list(TOOL_FOR))) for kind in kinds])

    @property
    def observation(self) -> str:
        """The next layer of rock."""
        kind, rock = self.layers[self.depth]
        return f"{kind} {rock} rock"

    @property
    def best(self) -> float:
        """The maximum total reward of an episode's calls."""
        return sum(WORTH[kind] - COST for kind, _ in self.layers if WORTH[kind] > COST)

    def use(self, tool: str, answer_id: str) -> str:
        """Use a tool and return the new observation. Rewards of calls in one answer are summed."""
        if self.done:
            return "the shift is over"
        if tool not in NAMES:
            self.reject()
            return "no such tool"
        self.calls += 1
        reward = 0.0 if tool == STOP else -COST
        kind, rock = self.layers[self.depth]
        if tool == TOOL_FOR[rock]:
            reward += WORTH[kind]
            self.depth += 1
        self.rewards[answer_id] = self.rewards.get(answer_id, 0.0) + reward
        self.done = tool == STOP or self.calls >= MAX_CALLS
        return "the shift is over" if self.done else self.observation

    def reject(self) -> None:
        """End the shift because an answer used no tool."""
        self.done = self.invalid = True


class MineWorld(World):
    """A world with rewards per call; see the module's docstring."""

    recipe = WorldRecipe(steps=30, algorithm=TINY_GRPO)
    # An answer may hold several calls.
    reward_range = (-MAX_CALLS * COST, MAX_CALLS * max(WORTH.values()))

    async def play(self, task_id: str, chat: Chat) -> WorldOutcome:
        mine = Mine.of(task_id)

        async def use(call: WorldCall, answer: WorldAnswer) -> str:
            return mine.use(call.name, answer.id)

        messages = [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": mine.observation},
        ]
        last = await use_tools(chat, messages, TOOLS, use, lambda: mine.done)
        if last is not None:
            mine.reject()
        earned = sum(mine.rewards.values())
        stopped_in_time = not mine.invalid and abs(earned - mine.best) < COST / 10
        return WorldOutcome(
            reward=INVALID_REWARD if mine.invalid else 0.0,
            success=float(stopped_in_time),
            components={
                "invalid": float(mine.invalid),
                "calls": float(mine.calls),
                "earned": earned,
            },
            call_rewards=mine.rewards,
        )

    def expert(self, prompt: WorldPrompt, rng: random.Random) -> WorldAnswer:  # noqa: ARG002
        kind, rock, _ = prompt.messages[-1]["content"].split()
        return _use(TOOL_FOR[rock] if WORTH[kind] > COST else STOP)

    def novice(self, prompt: WorldPrompt, rng: random.Random) -> WorldAnswer:
        if rng.random() < GOOD_CHOICE_SHARE:
            return self.expert(prompt, rng)
        return _use(rng.choice(NAMES))


def _use(tool: str) -> WorldAnswer:
    return WorldAnswer(calls=(WorldCall.of(tool),))
