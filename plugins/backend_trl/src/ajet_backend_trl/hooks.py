"""Plugin hooks that register the trainers, without importing torch or TRL."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.interfaces import TrainerCapabilities
from ajet_core.plugin import TrainerSpec, hookimpl
from ajet_engines.collective import CHANNEL
from ajet_training.algorithm_fields import POLICY_GRADIENT_FIELDS

WEIGHT_CHANNELS = ("safetensors_dir", CHANNEL)

SUPERVISED_FIELDS = POLICY_GRADIENT_FIELDS - {
    "aggregation",
    "clip_low",
    "clip_high",
    "importance",
    "importance_cap",
    "kl_coef",
    "entropy_coef",
    "max_update_kl",
}

DISTILLATION_FIELDS = SUPERVISED_FIELDS - {"advantage", "call_credit", "discount"}


@hookimpl
def ajet_register_trainers() -> Sequence[TrainerSpec]:
    """Register the trainers ``trl``, ``trl_sft`` and ``trl_distillation``."""
    return (
        TrainerSpec(
            name="trl",
            target="ajet_backend_trl.trainer:TrlTrainer",
            settings="ajet_backend_trl.settings:TrlTrainerSettings",
            summary="TRL's GRPOTrainer and its losses, full or LoRA, on several processes",
            capabilities=TrainerCapabilities(
                weight_channels=WEIGHT_CHANNELS,
                algorithm_fields=POLICY_GRADIENT_FIELDS,
                lora=True,
                reloads=True,
                rehearses=True,
            ),
        ),
        TrainerSpec(
            name="trl_sft",
            target="ajet_backend_trl.trainer:TrlSftTrainer",
            settings="ajet_backend_trl.settings:TrlSftSettings",
            summary="TRL's SFTTrainer on the best calls of each batch: rejection sampling",
            capabilities=TrainerCapabilities(
                weight_channels=WEIGHT_CHANNELS,
                algorithm_fields=SUPERVISED_FIELDS,
                lora=True,
                reloads=True,
                rehearses=True,
            ),
        ),
        TrainerSpec(
            name="trl_distillation",
            target="ajet_backend_trl.trainer:TrlDistillationTrainer",
            settings="ajet_backend_trl.settings:TrlDistillationSettings",
            summary=(
                "TRL's DistillationTrainer: trains the student's own calls towards a teacher's "
                "distribution"
            ),
            capabilities=TrainerCapabilities(
                weight_channels=WEIGHT_CHANNELS,
                algorithm_fields=DISTILLATION_FIELDS,
                lora=True,
                reloads=True,
                rehearses=True,
            ),
        ),
    )
