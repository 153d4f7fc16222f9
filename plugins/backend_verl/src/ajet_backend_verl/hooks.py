"""Plugin hooks that register the trainer, without importing torch, Ray or verl."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.interfaces import TrainerCapabilities
from ajet_core.plugin import TrainerSpec, hookimpl
from ajet_engines.collective import CHANNEL
from ajet_training.algorithm_fields import POLICY_GRADIENT_FIELDS

WEIGHT_CHANNELS = ("safetensors_dir", CHANNEL)


@hookimpl
def ajet_register_trainers() -> Sequence[TrainerSpec]:
    """Register the trainer ``verl``."""
    return (
        TrainerSpec(
            name="verl",
            target="ajet_backend_verl.trainer:VerlTrainer",
            settings="ajet_backend_verl.settings:VerlTrainerSettings",
            summary="verl on Ray (FSDP2), its policy losses and advantage estimators, full or LoRA",
            capabilities=TrainerCapabilities(
                weight_channels=WEIGHT_CHANNELS,
                algorithm_fields=POLICY_GRADIENT_FIELDS,
                lora=True,
                reloads=True,
                rehearses=True,
            ),
        ),
    )
