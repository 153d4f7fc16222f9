"""Plugin of the altered trainers ``waiting`` and ``faulty`` and the altered engine ``faulty``.

The server reads it without importing torch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from ajet_backend_torch import hooks
from ajet_backend_torch.settings import TorchEngineSettings, TorchTrainerSettings
from pydantic import Field

from ajet_core.plugin.components import EngineSpec, TrainerSpec
from ajet_core.plugin.spec import hookimpl

NAME = "altered_plugin"


class WaitingSettings(TorchTrainerSettings):
    """Settings of the torch trainer, and the duration of a step.

    :param share: share of a synchronous cycle: a step takes ``share / (1 - share)`` times the time
        of its rollouts.
    :param seconds: duration of every step, as an alternative.
    """

    share: Annotated[float, Field(gt=0, lt=1)] | None = None
    seconds: Annotated[float, Field(gt=0)] | None = None


class FaultySettings(TorchTrainerSettings):
    """Settings of the torch trainer, and its faults.

    :param from_step: the first step with the fault.
    :param rate: factor of the learning rate.
    :param noise: standard deviation of the noise added to the engine's logprobs, in nats.
    :param sharpen: factor by which the first step with the fault multiplies all logits of the
        model.
    :param reset: each step with the fault ends with the weights that the run began with.
    """

    from_step: Annotated[int, Field(ge=1)] = 1
    rate: Annotated[float, Field(gt=0)] = 1.0
    noise: Annotated[float, Field(ge=0)] = 0.0
    sharpen: Annotated[float, Field(gt=0)] = 1.0
    reset: bool = False


class LaggingSettings(TorchEngineSettings):
    """Settings of the torch engine, and its fault.

    :param from_version: the first policy version with the fault.
    :param lag: by how many steps the reported policy version of a call is too old.
    :param share: share of the calls with the fault.
    """

    from_version: Annotated[int, Field(ge=0)] = 0
    lag: Annotated[int, Field(ge=0)] = 0
    share: Annotated[float, Field(ge=0, le=1)] = 1.0


@hookimpl
def ajet_register_engines() -> Sequence[EngineSpec]:
    """Register the engine ``faulty``."""
    (torch,) = hooks.ajet_register_engines()
    return (
        replace(
            torch,
            name="faulty",
            target="lagging_engine:LaggingEngine",
            settings=f"{NAME}:LaggingSettings",
            summary="The torch engine, whose answers are said to be old; for a benchmark",
        ),
    )


@hookimpl
def ajet_register_trainers() -> Sequence[TrainerSpec]:
    """Register the trainers ``waiting`` and ``faulty``."""
    (torch,) = hooks.ajet_register_trainers()
    return (
        replace(
            torch,
            name="waiting",
            target="waiting_trainer:WaitingTrainer",
            settings=f"{NAME}:WaitingSettings",
            summary="The torch trainer, whose steps take a given time; for a benchmark",
        ),
        replace(
            torch,
            name="faulty",
            target="faulty_trainer:FaultyTrainer",
            settings=f"{NAME}:FaultySettings",
            summary="The torch trainer, with faults on purpose; for a benchmark",
        ),
    )


def environment_with_plugin(directory: Path) -> dict[str, str]:
    """Return this process's environment, with this plugin as if it were installed.

    :param directory: directory for the metadata of a distribution, through which plugins are found.
    """
    metadata = directory / "ajet_altered-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: ajet-altered\nVersion: 1.0\n", encoding="utf-8"
    )
    (metadata / "entry_points.txt").write_text(
        f"[agentjet]\naltered = {NAME}\n[agentjet.hook_api]\n1.0 = {NAME}\n", encoding="utf-8"
    )
    paths = [str(directory), str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH")]
    path = os.pathsep.join(filter(None, paths))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
