"""The plugin of the trainer ``waiting``. Light, as hooks have to be: the server reads it without importing torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from ajet_backend_torch import hooks
from ajet_backend_torch.settings import TorchTrainerSettings
from pydantic import Field

from ajet_core.plugin.components import TrainerSpec
from ajet_core.plugin.spec import hookimpl


class WaitingSettings(TorchTrainerSettings):
    """Settings of the torch trainer, and how long a step takes.

    :param share: of a synchronous cycle; a step takes ``share / (1 - share)`` times what its rollouts took.
    :param seconds: of every step, instead.
    """

    share: Annotated[float, Field(gt=0, lt=1)] | None = None
    seconds: Annotated[float, Field(gt=0)] | None = None


@hookimpl
def ajet_register_trainers() -> Sequence[TrainerSpec]:
    """The trainer ``waiting``."""
    (torch,) = hooks.ajet_register_trainers()
    return (
        replace(
            torch,
            name="waiting",
            target="waiting_trainer:WaitingTrainer",
            settings="waiting_plugin:WaitingSettings",
            summary="The torch trainer, whose steps take a given time; for a benchmark",
        ),
    )
