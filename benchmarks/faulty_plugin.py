"""The plugin of the trainer ``faulty``. Light, as hooks have to be: the server reads it without importing torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from ajet_backend_torch import hooks
from ajet_backend_torch.settings import TorchTrainerSettings
from pydantic import Field

from ajet_core.plugin.components import TrainerSpec
from ajet_core.plugin.spec import hookimpl


class FaultySettings(TorchTrainerSettings):
    """Settings of the torch trainer, and what goes wrong.

    :param from_step: the first step with the fault.
    :param rate: what the learning rate is multiplied by.
    :param noise: standard deviation of what is added to the engine's logprobs, in nats.
    """

    from_step: Annotated[int, Field(ge=1)] = 1
    rate: Annotated[float, Field(gt=0)] = 1.0
    noise: Annotated[float, Field(ge=0)] = 0.0


@hookimpl
def ajet_register_trainers() -> Sequence[TrainerSpec]:
    """The trainer ``faulty``."""
    (torch,) = hooks.ajet_register_trainers()
    return (
        replace(
            torch,
            name="faulty",
            target="faulty_trainer:FaultyTrainer",
            settings="faulty_plugin:FaultySettings",
            summary="The torch trainer, with faults on purpose; for a benchmark",
        ),
    )
