"""The plugin of the trainer ``witness``. Light, as hooks have to be: the server reads it without importing torch."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_backend_torch import hooks

from ajet_core.plugin.components import TrainerSpec
from ajet_core.plugin.spec import hookimpl


@hookimpl
def ajet_register_trainers() -> Sequence[TrainerSpec]:
    """The trainer ``witness``."""
    (torch,) = hooks.ajet_register_trainers()
    return (
        TrainerSpec(
            name="witness",
            target="recovery_witness:WitnessTrainer",
            settings=torch.settings,
            summary="The torch trainer, which remembers its batches; for a benchmark",
            capabilities=torch.capabilities,
        ),
    )
