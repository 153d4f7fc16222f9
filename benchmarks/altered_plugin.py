"""The plugin of two altered torch trainers, ``waiting`` and ``faulty``, and an engine ``faulty``. Light, as hooks have to be: the server reads it
without importing torch."""

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
    """Settings of the torch trainer, and how long a step takes.

    :param share: of a synchronous cycle; a step takes ``share / (1 - share)`` times what its rollouts took.
    :param seconds: of every step, instead.
    """

    share: Annotated[float, Field(gt=0, lt=1)] | None = None
    seconds: Annotated[float, Field(gt=0)] | None = None


class FaultySettings(TorchTrainerSettings):
    """Settings of the torch trainer, and what goes wrong.

    :param from_step: the first step with the fault.
    :param rate: what the learning rate is multiplied by.
    :param noise: standard deviation of what is added to the engine's logprobs, in nats.
    :param sharpen: what the first step with the fault multiplies all logits of the model by.
    """

    from_step: Annotated[int, Field(ge=1)] = 1
    rate: Annotated[float, Field(gt=0)] = 1.0
    noise: Annotated[float, Field(ge=0)] = 0.0
    sharpen: Annotated[float, Field(gt=0)] = 1.0


class LaggingSettings(TorchEngineSettings):
    """Settings of the torch engine, and what goes wrong.

    :param from_version: the first policy version with the fault.
    :param lag: by so many steps older weights than it has are said to sample a call.
    :param share: of the calls of which this is said.
    """

    from_version: Annotated[int, Field(ge=0)] = 0
    lag: Annotated[int, Field(ge=0)] = 0
    share: Annotated[float, Field(ge=0, le=1)] = 1.0


@hookimpl
def ajet_register_engines() -> Sequence[EngineSpec]:
    """The engine ``faulty``."""
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
    """The trainers ``waiting`` and ``faulty``."""
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
    """This process's environment, changed so that servers and workers find this plugin as if it were installed.

    :param directory: for the metadata of a distribution, by which plugins are found.
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
