"""The demo's training settings, with which the tiny model learns."""

from __future__ import annotations

from pathlib import Path

from ajet_core.protocol import RunConfig
from ajet_worlds import load_world, recipe
from ajet_worlds.grid import GridWorld

TASKS_PER_STEP = GridWorld.recipe.batch.tasks
ROLLOUTS_PER_TASK = GridWorld.recipe.batch.episodes_per_task
EPISODES_PER_STEP = TASKS_PER_STEP * ROLLOUTS_PER_TASK
EVAL_EPISODES = 64

# Success is measured with the sampling of training. Greedy decoding of so small a model varies from
# step to step (0.64 to 1.00 where sampling gives 0.75), so it is less informative.
TEMPERATURE = 1.0


def run_config(
    model: Path, seed: int, *, engine: str = "torch", trainer: str = "torch"
) -> RunConfig:
    """Return the demo's GRPO configuration with these components."""
    return recipe.run_config(
        load_world("grid"),
        model,
        name="gridwalk-tiny",
        seed=seed,
        engine=engine,
        trainer=trainer,
    )


def relay_config(model: Path, seed: int) -> RunConfig:
    """Return the configuration for a model that walks with another one, with rewards per call.

    Most calls of a group are good soon. Divided by their deviation, the few others would weigh so
    much that they destroy the form of the tool call.
    """
    config = run_config(model, seed)
    algorithm = config.algorithm.model_copy(update={"discount": 0.0, "learning_rate": 5e-4})
    return config.model_copy(update={"algorithm": algorithm})


def train_task_ids(seed: int, step: int) -> list[str]:
    """Return the tasks of one step, which are new in each step and fixed by the seed."""
    return [f"train-{seed}-{step}-{i}" for i in range(TASKS_PER_STEP)]


def eval_task_ids(seed: int) -> list[str]:
    """Return the held-out tasks, which are never trained on."""
    return [f"eval-{seed}-{i}" for i in range(EVAL_EPISODES)]
