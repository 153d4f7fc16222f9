"""What the demo trains with: the numbers that make the tiny model learn, in one place."""

from __future__ import annotations

from pathlib import Path

from ajet_core.protocol import RunConfig
from ajet_worlds import recipe
from ajet_worlds.grid import GridWorld

TASKS_PER_STEP = GridWorld.recipe.batch.tasks
ROLLOUTS_PER_TASK = GridWorld.recipe.batch.episodes_per_task
EPISODES_PER_STEP = TASKS_PER_STEP * ROLLOUTS_PER_TASK
EVAL_EPISODES = 64

# Success is measured as the model acts while it learns. Greedy decoding of so small a model swings
# between single steps (0.64 to 1.00 where sampling gives 0.75), so it says less.
TEMPERATURE = 1.0


def run_config(
    model: Path, seed: int, *, engine: str = "torch", trainer: str = "torch"
) -> RunConfig:
    """GRPO as the demo uses it, on the components of these names."""
    return recipe.run_config(
        GridWorld(), model, name="gridwalk-tiny", seed=seed, engine=engine, trainer=trainer
    )


def relay_config(model: Path, seed: int) -> RunConfig:
    """The same for a model that walks with another one: each call answers for itself alone.

    Most calls of a group are good before long. Divided by their deviation, the few that are not would weigh so much
    that they end the form of the tool call.
    """
    config = run_config(model, seed)
    algorithm = config.algorithm.model_copy(update={"discount": 0.0, "learning_rate": 5e-4})
    return config.model_copy(update={"algorithm": algorithm})


def train_task_ids(seed: int, step: int) -> list[str]:
    """The tasks of one step: new ones each step, the same in every run with this seed."""
    return [f"train-{seed}-{step}-{i}" for i in range(TASKS_PER_STEP)]


def eval_task_ids(seed: int) -> list[str]:
    """The held-out tasks, none of which is ever trained on."""
    return [f"eval-{seed}-{i}" for i in range(EVAL_EPISODES)]
