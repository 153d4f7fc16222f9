"""What the demo trains with: the numbers that make the tiny model learn, in one place."""

from __future__ import annotations

from pathlib import Path

from ajet_core.protocol import (
    AlgorithmConfig,
    BatchConfig,
    ComponentChoice,
    ModelConfig,
    RunConfig,
)

TASKS_PER_STEP = 8
ROLLOUTS_PER_TASK = 8
EPISODES_PER_STEP = TASKS_PER_STEP * ROLLOUTS_PER_TASK
EVAL_EPISODES = 64
CHECKPOINT_EVERY = 5

# Success is measured as the model acts while it learns. Greedy decoding of so small a model swings
# between single steps (0.64 to 1.00 where sampling gives 0.75), so it says less.
TEMPERATURE = 1.0

# What a model of this size needs of an engine; the others' defaults are for large ones.
ENGINES = {
    "torch": ComponentChoice(name="torch"),
    "sglang": ComponentChoice(
        name="sglang", settings={"max_running_requests": EPISODES_PER_STEP, "threads": 1}
    ),
    "vllm": ComponentChoice(
        name="vllm", settings={"max_num_seqs": EPISODES_PER_STEP, "kv_cache_gib": 1, "threads": 1}
    ),
}


def run_config(
    model: Path, seed: int, *, engine: str = "torch", trainer: str = "torch"
) -> RunConfig:
    """GRPO as the demo uses it, on the components of these names."""
    return RunConfig(
        model=ModelConfig(path=str(model), name="gridwalk-tiny", renderer="qwen3"),
        engine=ENGINES.get(engine, ComponentChoice(name=engine)),
        trainer=ComponentChoice(name=trainer),
        algorithm=AlgorithmConfig(
            advantage="group_std",
            clip_low=0.2,
            clip_high=0.3,
            minibatches=4,
            learning_rate=1e-3,
            # Without it the first steps destroy the form of the tool call.
            warmup_steps=5,
            adam_betas=(0.9, 0.99),
            max_grad_norm=1.0,
            kl_coef=0.0,
        ),
        batch=BatchConfig(tasks=TASKS_PER_STEP, episodes_per_task=ROLLOUTS_PER_TASK),
        seed=seed,
        checkpoint_every=CHECKPOINT_EVERY,
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
