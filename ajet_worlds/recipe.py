"""The run configuration for a world's recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ajet_core.interfaces import World
from ajet_core.protocol import ComponentChoice, ModelConfig, RolloutConfig, RunConfig

__all__ = ["CHECKPOINT_EVERY", "engine_choice", "run_config"]

CHECKPOINT_EVERY = 5


def engine_choice(name: str, episodes: int) -> ComponentChoice:
    """Return engine settings for a tiny model; the defaults are for large ones.

    :param episodes: number of concurrent episodes.
    """
    settings: dict[str, dict[str, object]] = {
        "sglang": {"max_running_requests": episodes, "threads": 1},
        "vllm": {"max_num_seqs": episodes, "kv_cache_gib": 1, "threads": 1},
    }
    return ComponentChoice(name=name, settings=settings.get(name, {}))


def run_config(
    world: World,
    model: Path,
    *,
    name: str = "tiny",
    seed: int = 0,
    engine: str = "torch",
    trainer: str = "torch",
    mode: Literal["sync", "async"] = "sync",
) -> RunConfig:
    """Return the configuration of a run in which `model` learns `world`.

    :param model: a directory made by `create_tiny_model`, inside a model root of the server.
    :param name: name of the model.
    :param engine: name of the engine; likewise `trainer`.
    :param mode: mode of the rollouts, with its defaults.
    """
    recipe = world.recipe
    return RunConfig(
        model=ModelConfig(path=str(model), name=name, renderer="qwen3"),
        engine=engine_choice(engine, recipe.batch.episodes),
        trainer=ComponentChoice(name=trainer),
        algorithm=recipe.algorithm,
        batch=recipe.batch,
        timelines=recipe.timelines,
        rollout=RolloutConfig(mode=mode),
        seed=seed,
        checkpoint_every=CHECKPOINT_EVERY,
    )
