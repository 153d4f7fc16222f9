"""What the plugin registers. This module is light: it names what it does not import."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.interfaces import TrainerCapabilities
from ajet_core.plugin import TrainerSpec, hookimpl

WEIGHT_CHANNELS = ("safetensors_dir",)


@hookimpl
def ajet_register_trainers() -> Sequence[TrainerSpec]:
    """Register the trainer ``log``."""
    return [
        TrainerSpec(
            name="log",
            target="ajet_trainer_log.trainer:LogTrainer",
            settings="ajet_trainer_log.settings:LogTrainerSettings",
            summary="writes what would be trained to files, and trains nothing",
            capabilities=TrainerCapabilities(
                weight_channels=WEIGHT_CHANNELS,
                # Those that decide on advantages. The others would change nothing that is written.
                algorithm_fields=frozenset({"advantage", "call_credit", "discount"}),
                reloads=True,
                rehearses=True,
            ),
        )
    ]
