"""Two grids whose agents rewrite their context: one summarises it, one delegates to sub-agents."""

from __future__ import annotations

import random
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
from ajet_core.protocol import BatchConfig
from ajet_worlds.grid import grid_outcome
from ajet_worlds.gridwalk import (
    DIRECTIONS,
    GOAL_REWARD,
    INVALID_REWARD,
    SYSTEM_PROMPT,
    TOOLS,
    GridWalk,
    directions_in,
)
from ajet_worlds.tiny_grpo import TINY_GRPO
from ajet_worlds.turns import use_tools

MOVES_PER_CONTEXT = 2
"""So many moves fit into the context of the agent that summarises."""
ASKS_FOR_NOTE = "note"
NOTE_TOKENS = 24
KEPT_SHARE = 0.7
"""How often the novice notes where the goal is, and not any place."""
GOOD_MOVE_SHARE = 0.4
RECIPE = WorldRecipe(
    steps=60,
    algorithm=TINY_GRPO.model_copy(update={"learning_rate": 5e-4}),
    batch=BatchConfig(tasks=8, episodes_per_task=8),
    warmup_steps=300,
)
AXES = ("rows", "columns")
MOVES_PER_WALKER = 2
WALKER = "walker"


class CompactingGrid(World):
    """The grid with a context that is too short: after two moves, only a note remains.

    The agent asks the model for the note, then begins a conversation that has nothing else. So the
    note is a sampled call, and it is trained by whether the walk succeeds.
    """

    recipe = RECIPE
    reward_range = (INVALID_REWARD, GOAL_REWARD)

    async def play(self, task_id: str, chat: Chat) -> WorldOutcome:
        walk = GridWalk(task_id)
        history = walk.messages()
        while not walk.done:
            answer = await chat.ask(WorldPrompt(history, TOOLS))
            if not answer.calls:
                walk.reject()
                break
            history = [*history, answer.message()]
            for call in answer.calls:
                reply = walk.call(call.name, call.arguments)
                history.append({"role": "tool", "tool_call_id": call.id, "content": reply})
            if not walk.done and walk.moves % MOVES_PER_CONTEXT == 0:
                history.append({"role": "user", "content": ASKS_FOR_NOTE})
                note = await chat.ask(WorldPrompt(history, max_tokens=NOTE_TOKENS))
                history = [
                    {"role": "system", "content": SYSTEM_PROMPT},
                    {"role": "user", "content": note.text or "nothing"},
                ]
        return grid_outcome(walk)

    def expert(self, prompt: WorldPrompt, rng: random.Random) -> WorldAnswer:
        if _is_note(prompt):
            return WorldAnswer(str(prompt.messages[-2]["content"]))
        return _move(rng.choice(_good(prompt)))

    def novice(self, prompt: WorldPrompt, rng: random.Random) -> WorldAnswer:
        if not _is_note(prompt):
            on_purpose = rng.random() < GOOD_MOVE_SHARE
            return _move(rng.choice(_good(prompt) if on_purpose else list(DIRECTIONS)))
        if rng.random() < KEPT_SHARE:
            return self.expert(prompt, rng)
        elsewhere = GridWalk(f"elsewhere-{rng.random()}")
        return WorldAnswer(elsewhere.observation())


class DelegatingGrid(World):
    """The grid with a leader who sends walkers along rows or columns, and does not walk itself.

    Each walker is a sub-agent with a conversation of its own, and reports where the goal is. Only
    the outcome of the walk is rewarded, so it trains the leader's and the walkers' calls alike.
    """

    recipe = RECIPE
    reward_range = (INVALID_REWARD, GOAL_REWARD)

    async def play(self, task_id: str, chat: Chat) -> WorldOutcome:
        walk = GridWalk(task_id)
        history: list[Any] = [
            {"role": "system", "content": "Send walkers."},
            {"role": "user", "content": walk.observation()},
        ]
        while not walk.done:
            answer = await chat.ask(WorldPrompt(history, agent="leader", max_tokens=8))
            if answer.text not in AXES:
                walk.reject()
                break
            history.append(answer.message())
            await self._walk(walk, answer.text, chat)
            history.append({"role": "user", "content": walk.observation()})
        return grid_outcome(walk)

    async def _walk(self, walk: GridWalk, axis: str, chat: Chat) -> None:
        last = walk.moves + MOVES_PER_WALKER
        messages = [
            {"role": "system", "content": f"Walk along {axis}."},
            {"role": "user", "content": walk.observation()},
        ]

        async def move(call: WorldCall, _: WorldAnswer) -> str:
            return walk.call(call.name, call.arguments)

        def is_over() -> bool:
            return walk.done or walk.moves >= last

        if await use_tools(chat, messages, TOOLS, move, is_over, agent=WALKER) is not None:
            walk.reject()

    def expert(self, prompt: WorldPrompt, rng: random.Random) -> WorldAnswer:
        good = _good(prompt)
        if prompt.agent != WALKER:
            return WorldAnswer(AXES[0] if {"up", "down"} & set(good) else AXES[1])
        along = (
            {"up", "down"} if AXES[0] in str(prompt.messages[0]["content"]) else {"left", "right"}
        )
        return _move(rng.choice([d for d in good if d in along] or good))

    def novice(self, prompt: WorldPrompt, rng: random.Random) -> WorldAnswer:
        if rng.random() < GOOD_MOVE_SHARE:
            return self.expert(prompt, rng)
        if prompt.agent != WALKER:
            return WorldAnswer(rng.choice(AXES))
        return _move(rng.choice(list(DIRECTIONS)))


def _is_note(prompt: WorldPrompt) -> bool:
    return prompt.messages[-1]["content"] == ASKS_FOR_NOTE


def _good(prompt: WorldPrompt) -> list[str]:
    return directions_in(str(prompt.messages[-1]["content"])) or list(DIRECTIONS)


def _move(direction: str) -> WorldAnswer:
    return WorldAnswer(calls=(WorldCall.of("move", direction=direction),))
