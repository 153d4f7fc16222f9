"""The world ``pair``: two agents of one model, with separate rewards.

The guide sees a lamp and names it. The follower only sees the guide's word and answers with the
next number, by a rule that no prompt states. Each is rewarded for its part: the guide for the right
word, the follower for the right answer to the word it got. The episode as a whole is not rewarded,
so nothing is learned unless `WorldOutcome.agent_rewards` are credited to the calls of their agents.
"""

from __future__ import annotations

import random

from ajet_core.interfaces import Chat, World, WorldAnswer, WorldOutcome, WorldPrompt, WorldRecipe
from ajet_core.protocol import BatchConfig
from ajet_worlds.tiny_grpo import TINY_GRPO

GUIDE, FOLLOWER = "guide", "follower"
LAMPS = 4
ROUNDS = 2
MAX_TOKENS = 4
INVALID_REWARD = -0.5
GOOD_ANSWER_SHARE = 0.2
"""How often the novice answers on purpose, so that a model warmed up on it uses its prompt."""


class PairWorld(World):
    """A world of two agents with separate rewards; see the module's docstring."""

    recipe = WorldRecipe(
        steps=60,
        # With twice the rate, some models lose what they learned. Without the bonus, some are sure
        # of a wrong answer before they have tried the right one.
        algorithm=TINY_GRPO.model_copy(update={"learning_rate": 5e-4, "entropy_coef": 0.01}),
        batch=BatchConfig(tasks=16, episodes_per_task=8),
    )
    reward_range = (INVALID_REWARD, 1.0)

    async def play(self, task_id: str, chat: Chat) -> WorldOutcome:
        rng = random.Random(f"pair/{task_id}")  # noqa: S311 - a puzzle, not a secret
        earned: dict[str, float] = {}
        both = 0
        for _ in range(ROUNDS):
            lamp = rng.randrange(LAMPS)
            word = await self._ask(chat, GUIDE, f"lamp {lamp}")
            earned[GUIDE] = earned.get(GUIDE, 0.0) + _score(word, lamp)
            if word is None:
                continue
            answer = await self._ask(chat, FOLLOWER, f"word {word}")
            earned[FOLLOWER] = earned.get(FOLLOWER, 0.0) + _score(answer, follow(word))
            both += word == lamp and answer == follow(word)
        return WorldOutcome(
            reward=0.0,
            success=both / ROUNDS,
            agent_rewards={agent: total / ROUNDS for agent, total in earned.items()},
        )

    def expert(self, prompt: WorldPrompt, rng: random.Random) -> WorldAnswer:  # noqa: ARG002
        seen = int(prompt.messages[-1]["content"].split()[-1])
        return WorldAnswer(str(follow(seen) if prompt.agent == FOLLOWER else seen))

    def novice(self, prompt: WorldPrompt, rng: random.Random) -> WorldAnswer:
        if rng.random() < GOOD_ANSWER_SHARE:
            return self.expert(prompt, rng)
        return WorldAnswer(str(rng.randrange(LAMPS)))

    async def _ask(self, chat: Chat, agent: str, sees: str) -> int | None:
        messages = [
            {"role": "system", "content": f"You are the {agent}."},
            {"role": "user", "content": sees},
        ]
        answer = await chat.ask(WorldPrompt(messages, agent=agent, max_tokens=MAX_TOKENS))
        return int(answer.text) if answer.text in map(str, range(LAMPS)) else None


def follow(word: int) -> int:
    """Return the follower's right answer."""
    return (word + 1) % LAMPS


def _score(said: int | None, right: int) -> float:
    return INVALID_REWARD if said is None else float(said == right)
