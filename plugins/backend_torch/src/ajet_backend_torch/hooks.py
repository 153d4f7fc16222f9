"""Plugin hooks that register the engine and the trainer, without importing torch."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.interfaces import EngineCapabilities, TrainerCapabilities
from ajet_core.plugin import EngineSpec, TrainerSpec, hookimpl
from ajet_engines.collective import CHANNEL
from ajet_training.algorithm_fields import POLICY_GRADIENT_FIELDS

OFFERED_CHANNELS = ("in_process", "safetensors_dir", CHANNEL)
ACCEPTED_CHANNELS = ("in_process", "safetensors_dir")
MAX_TOP_LOGPROBS = 20


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
                min_p=True,
                penalties=True,
                grammar=True,
                exact=True,
                sampled_from=True,
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
                algorithm_fields=POLICY_GRADIENT_FIELDS,
                reloads=True,
                rehearses=True,
                exact=True,
                sampled_from=True,
                lora=True,
                trees=True,
            ),
        ),
    )
