"""The run that a recipe suggests."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from ajet_core.protocol import RunConfig
from ajet_demo import recipe as demo
from ajet_worlds import load_world, world_specs
from ajet_worlds.recipe import run_config

MODEL = Path("/models/tiny")


@pytest.mark.parametrize("name", [spec.name for spec in world_specs()])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_it_is_a_valid_run_of_the_mode_that_was_asked_for(
    name: str, mode: Literal["sync", "async"]
) -> None:
    config = run_config(load_world(name), MODEL, seed=3, engine="vllm", trainer="trl", mode=mode)
    assert RunConfig.model_validate(config.model_dump()) == config
    assert (config.rollout.mode, config.seed) == (mode, 3)
    assert (config.engine.name, config.trainer.name) == ("vllm", "trl")
    assert config.engine.settings["max_num_seqs"] == config.batch.episodes


def test_the_demo_trains_as_the_world_grid_says() -> None:
    grid = run_config(load_world("grid"), MODEL, name="gridwalk-tiny", seed=1)
    assert demo.run_config(MODEL, 1) == grid
