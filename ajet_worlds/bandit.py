"""The world ``bandit``: one turn; only pulling shows which arm pays for which lamp.

There are eight lamps and four arms. Each lamp has a best arm, by a rule that no prompt states. The
best arm pays in nine of ten tasks, the others in one of ten. Whether an arm pays depends only on
the task and the arm.
"""

from __future__ import annotations

import random

from ajet_core.interfaces import Chat, World, WorldAnswer, WorldOutcome, WorldPrompt, WorldRecipe
from ajet_core.protocol import BatchConfig
from ajet_worlds.tiny_grpo import TINY_GRPO

BEST_ARM = (2, 0, 3, 1, 1, 3, 0, 2)
"""The best arm by lamp, without a formula, so that every lamp has to be learned."""
ARMS = 4
BEST_PAYS, OTHERS_PAY = 0.9, 0.1
HABIT_SHARE = 0.3
"""How often the novice pulls its habitual arm for a lamp, which is never the best one. This makes a
model that is warmed up on it look at the lamp: otherwise one model in four would always pull the
same arms for all lamps."""
PAY = 1.0
INVALID_REWARD = -0.5


class BanditWorld(World):
    """A world with one turn and hidden payouts; see the module's docstring."""

    recipe = WorldRecipe(
        steps=100,
        # A model stops trying the best arm of a lamp if it sees it pay too late. Many pulls in a
        # step prevent this, the bonus keeps all arms probable, and the standard deviation gives a
        # rare good pull its weight. With twice the rate, a few lucky pulls undo what was learned.
        algorithm=TINY_GRPO.model_copy(update={"learning_rate": 5e-4, "entropy_coef": 0.02}),
        batch=BatchConfig(tasks=32, episodes_per_task=8),
    )
    reward_range = (INVALID_REWARD, PAY)

    async def play(self, task_id: str, chat: Chat) -> WorldOutcome:
        rng = random.Random(f"bandit/{task_id}")  # noqa: S311 - a puzzle, not a secret
        lamp = rng.randrange(len(BEST_ARM))
        chances = [BEST_PAYS if arm == BEST_ARM[lamp] else OTHERS_PAY for arm in range(ARMS)]
        pays = [rng.random() < chance for chance in chances]
        messages = [
            {"role": "system", "content": "Pull the arm that pays."},
            {"role": "user", "content": f"lamp {lamp}"},
        ]
        said = (await chat.ask(WorldPrompt(messages, max_tokens=4))).text
        if said not in ("0", "1", "2", "3"):
            return WorldOutcome(INVALID_REWARD, success=0.0, components={"invalid": 1.0})
        arm = int(said)
        return WorldOutcome(PAY * pays[arm], float(arm == BEST_ARM[lamp]), {"invalid": 0.0})

    def expert(self, prompt: WorldPrompt, rng: random.Random) -> WorldAnswer:  # noqa: ARG002
        lamp = int(prompt.messages[-1]["content"].split()[-1])
        return WorldAnswer(str(BEST_ARM[lamp]))

    def novice(self, prompt: WorldPrompt, rng: random.Random) -> WorldAnswer:
        if rng.random() < HABIT_SHARE:
            lamp = int(prompt.messages[-1]["content"].split()[-1])
            return WorldAnswer(str(lamp % ARMS))
        return WorldAnswer(str(rng.randrange(ARMS)))
