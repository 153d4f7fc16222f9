"""Plugin hooks that register the engine and the trainer, without importing torch."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.interfaces import EngineCapabilities, TrainerCapabilities
from ajet_core.plugin import EngineSpec, TrainerSpec, hookimpl
from ajet_engines.collective import CHANNEL

OFFERED_CHANNELS = ("in_process", "safetensors_dir", CHANNEL)
ACCEPTED_CHANNELS = ("in_process", "safetensors_dir")
MAX_TOP_LOGPROBS = 20

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
def ajet_register_engines() -> Sequence[EngineSpec]:
    """Register the engine ``torch``."""
    return (
        EngineSpec(
            name="torch",
            target="ajet_backend_torch.engine:TorchEngine",
            settings="ajet_backend_torch.settings:TorchEngineSettings",
            summary="Slot KV cache over any Hugging Face causal LM, on CPU or one GPU",
            capabilities=EngineCapabilities(
                weight_channels=ACCEPTED_CHANNELS,
                max_top_logprobs=MAX_TOP_LOGPROBS,
                seed=True,
                penalties=True,
                grammar=True,
                seals=True,
            ),
        ),
    )


@hookimpl
def ajet_register_trainers() -> Sequence[TrainerSpec]:
    """Register the trainer ``torch``."""
    return (
        TrainerSpec(
            name="torch",
            target="ajet_backend_torch.trainer:TorchTrainer",
            settings="ajet_backend_torch.settings:TorchTrainerSettings",
            summary="Policy-gradient training of any Hugging Face causal LM, full or LoRA",
            capabilities=TrainerCapabilities(
                weight_channels=OFFERED_CHANNELS,
                algorithm_fields=ALGORITHM_FIELDS,
                reloads=True,
                rehearses=True,
                lora=True,
                trees=True,
            ),
        ),
    )
