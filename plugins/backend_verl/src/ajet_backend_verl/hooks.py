"""Plugin hooks that register the trainer, without importing torch, Ray or verl."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.interfaces import TrainerCapabilities
from ajet_core.plugin import TrainerSpec, hookimpl
from ajet_engines.collective import CHANNEL

WEIGHT_CHANNELS = ("safetensors_dir", CHANNEL)

ALGORITHM_FIELDS = frozenset(
    {
        "advantage",
        "call_credit",
        "discount",
        "aggregation",
        "clip_low",
        "clip_high",
        "importance",
        "importance_cap",
        "kl_coef",
        "entropy_coef",
        "minibatches",
        "epochs",
        "learning_rate",
        "warmup_steps",
        "weight_decay",
        "adam_betas",
        "max_grad_norm",
        "max_update_kl",
        "max_update_rms",
        "token_budget",
    }
)


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
                algorithm_fields=ALGORITHM_FIELDS,
                lora=True,
                reloads=True,
                rehearses=True,
            ),
        ),
    )
