"""The world ``memory``: a key shown once and requested 20 turns later, with a compacted history.

The agent keeps its prompts short. Every fourth turn it asks the model for a note, drops all turns
so far, and continues from the note only, so its timelines branch. Other numbers appear in between.
Only a model that writes the key into each note, and reads it from the last one, can name it at the
end.
"""

from __future__ import annotations

import random
from typing import Any

from ajet_core.interfaces import Chat, World, WorldAnswer, WorldOutcome, WorldPrompt, WorldRecipe
from ajet_core.protocol import BatchConfig
from ajet_worlds.tiny_grpo import TINY_GRPO

KEYS = 8
TURNS = 20
NOTE_EVERY = 4
MAX_TOKENS = 4
ASKS_FOR_NOTE, ASKS_FOR_KEY = "note", "open"
WALKS_ON = "on"
KEPT_SHARE = 0.65
"""How often the novice writes the key that it can read; otherwise it writes any number. A model
learns copying only from these examples, and needs more steps for it than for a form."""


class MemoryWorld(World):
    """A world that requires keeping a key in notes; see the module's docstring."""

    recipe = WorldRecipe(
        steps=40,
        # With twice the rate, success still varies by a third from step to step at the end.
        algorithm=TINY_GRPO.model_copy(update={"learning_rate": 5e-4}),
        batch=BatchConfig(tasks=8, episodes_per_task=8),
        warmup_steps=300,
    )

    async def play(self, task_id: str, chat: Chat) -> WorldOutcome:
        rng = random.Random(f"memory/{task_id}")  # noqa: S311 - a puzzle, not a secret
        key = str(rng.randrange(KEYS))
        history = _history(key)
        kept = 0
        for turn in range(1, TURNS):
            noting = turn % NOTE_EVERY == 0
            said = ASKS_FOR_NOTE if noting else f"door {rng.randrange(KEYS)}"
            answer = await _say(chat, history, said)
            if noting:
                kept += answer == key
                history = _history(answer)
        success = float(await _say(chat, history, ASKS_FOR_KEY) == key)
        notes = (TURNS - 1) // NOTE_EVERY
        return WorldOutcome(success, success, components={"kept": kept / notes})

    def expert(self, prompt: WorldPrompt, rng: random.Random) -> WorldAnswer:  # noqa: ARG002
        if prompt.messages[-1]["content"] not in (ASKS_FOR_NOTE, ASKS_FOR_KEY):
            return WorldAnswer(WALKS_ON)
        return WorldAnswer(prompt.messages[1]["content"].removeprefix("key "))

    def novice(self, prompt: WorldPrompt, rng: random.Random) -> WorldAnswer:
        answer = self.expert(prompt, rng)
        if answer.text == WALKS_ON or rng.random() < KEPT_SHARE:
            return answer
        return WorldAnswer(str(rng.randrange(KEYS)))


def _history(note: str) -> list[Any]:
    """Return a history that consists of a note only."""
    return [
        {"role": "system", "content": "Keep the key."},
        {"role": "user", "content": f"key {note}"},
    ]


async def _say(chat: Chat, history: list[Any], text: str) -> str:
    """Send a text, append it and the answer to `history`, and return the answer."""
    history.append({"role": "user", "content": text})
    answer = await chat.ask(WorldPrompt(history, max_tokens=MAX_TOKENS))
    history.append(answer.message())
    return answer.text
