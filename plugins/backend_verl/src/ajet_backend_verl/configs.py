"""Configuration of verl for a run.

Import this module after `ajet_backend_verl.surroundings.prepare`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from pydantic import JsonValue
from verl.trainer.config import AlgoConfig, CheckpointConfig, RolloutCorrectionConfig
from verl.workers.config import (
    FSDPActorConfig,
    FSDPEngineConfig,
    FSDPOptimizerConfig,
    HFModelConfig,
    PolicyLossConfig,
    TrainingWorkerConfig,
)

from ajet_backend_verl.settings import VerlTrainerSettings
from ajet_backend_verl.verl_keys import ACTOR, FSDP, MODEL, under
from ajet_core.errors import ConfigError
from ajet_core.protocol import AlgorithmConfig, ModelConfig

Config = TypeVar("Config")

NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16"}


def worker_config(
    model: ModelConfig,
    algorithm: AlgorithmConfig,
    options: VerlTrainerSettings,
    dtype: torch.dtype,
) -> TrainingWorkerConfig:
    """Make the configuration of the workers that train.

    :param dtype: dtype of the model, which passes use; trained weights are float32.
    :raises ConfigError: verl does not accept a value.
    """
    return _made(
        TrainingWorkerConfig,
        {
            "model_type": "language_model",
            "model_config": _model_config(model, options),
            "engine_config": _engine_config(options, dtype, forward_only=False, trained=True),
            "optimizer_config": _optimizer_config(algorithm, options),
            "checkpoint_config": CheckpointConfig(),
        },
    )


def reference_config(
    model: ModelConfig, options: VerlTrainerSettings, dtype: torch.dtype, *, cuda: bool
) -> TrainingWorkerConfig:
    """Make the configuration of the reference model, which is not trained.

    verl's forward-only mode keeps the model in host memory that a GPU reads directly, so it is used
    only with a GPU.
    """
    return _made(
        TrainingWorkerConfig,
        {
            "model_type": "language_model",
            "model_config": _model_config(model.model_copy(update={"lora": None}), options),
            "engine_config": _engine_config(options, dtype, forward_only=cuda, trained=False),
            "optimizer_config": FSDPOptimizerConfig(total_training_steps=1),
            "checkpoint_config": CheckpointConfig(),
        },
    )


def actor_config(algorithm: AlgorithmConfig, options: VerlTrainerSettings) -> FSDPActorConfig:
    """Make the configuration that verl's losses read."""
    correction = correction_config(algorithm, options)
    bypasses = correction is not None and correction.bypass_mode
    policy_loss = under(options.verl, ACTOR + "policy_loss.")
    loss: dict[str, Any] = {
        **policy_loss,
        "loss_mode": "bypass_mode" if bypasses else options.loss_mode,
    }
    if correction is not None:
        loss["rollout_correction"] = correction
    return _made(
        FSDPActorConfig,
        {
            **under(options.verl, ACTOR),
            "strategy": "fsdp2",
            "rollout_n": 1,
            "use_dynamic_bsz": True,
            "clip_ratio": algorithm.clip_low,
            "clip_ratio_low": algorithm.clip_low,
            "clip_ratio_high": algorithm.clip_high,
            "policy_loss": _made(PolicyLossConfig, loss),
            "loss_agg_mode": options.loss_agg_mode or "token-mean",
            "entropy_coeff": algorithm.entropy_coef,
            "use_kl_loss": algorithm.kl_coef > 0,
            "kl_loss_coef": algorithm.kl_coef,
        },
    )


def correction_config(
    algorithm: AlgorithmConfig, options: VerlTrainerSettings
) -> RolloutCorrectionConfig | None:
    """Return how tokens from other weights are corrected; None compares with behaviour logprobs.

    `AlgorithmConfig.importance` ``truncated`` is verl's decoupled mode with importance weights of
    tokens.
    """
    if options.correction:
        return _made(RolloutCorrectionConfig, options.correction)
    if algorithm.importance == "truncated":
        return RolloutCorrectionConfig.decoupled_token_is(algorithm.importance_cap)
    return None


def estimator_config(options: VerlTrainerSettings) -> AlgoConfig:
    """Make the configuration that verl's advantage estimators read."""
    return _made(
        AlgoConfig, {**under(options.verl, "algorithm."), "adv_estimator": options.adv_estimator}
    )


def _model_config(model: ModelConfig, options: VerlTrainerSettings) -> HFModelConfig:
    values: dict[str, Any] = {
        # Packed sequences need kernels that not every machine has.
        "use_remove_padding": False,
        **under(options.verl, MODEL),
        "override_config": {
            "attn_implementation": "sdpa",
            **under(options.verl, MODEL + "override_config."),
        },
        "path": model.path,
        # Nothing is tokenised, and verl would write the tokenizer's ids into the model's
        # configuration.
        "load_tokenizer": False,
        "enable_gradient_checkpointing": options.gradient_checkpointing,
    }
    if model.lora is not None:
        targets = model.lora.target_modules
        values["lora_rank"] = model.lora.rank
        values["lora_alpha"] = model.lora.alpha
        values["target_modules"] = targets if isinstance(targets, str) else list(targets)
    return _made(HFModelConfig, values)


def _engine_config(
    options: VerlTrainerSettings, dtype: torch.dtype, *, forward_only: bool, trained: bool
) -> FSDPEngineConfig:
    name = NAMES[dtype]
    values: dict[str, Any] = {
        # A compiled function would be compiled again for most shapes of batches.
        "use_torch_compile": False,
        "param_offload": options.offload,
        "optimizer_offload": options.offload,
        **under(options.verl, FSDP),
        "strategy": "fsdp2",
        "forward_only": forward_only,
        # A reference never changes, so it needs no more than its compute precision.
        "model_dtype": "fp32" if trained else name,
        "mixed_precision": {"param_dtype": name, "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
        "use_dynamic_bsz": True,
    }
    return _made(FSDPEngineConfig, values)


def _optimizer_config(
    algorithm: AlgorithmConfig, options: VerlTrainerSettings
) -> FSDPOptimizerConfig:
    return _made(
        FSDPOptimizerConfig,
        {
            "lr": algorithm.learning_rate,
            "weight_decay": algorithm.weight_decay,
            "betas": algorithm.adam_betas,
            # `AlgorithmConfig.max_grad_norm` 0 disables clipping.
            "clip_grad": algorithm.max_grad_norm or float("inf"),
            # The learning rate is set before every optimiser step.
            "lr_scheduler_type": "constant",
            "total_training_steps": 1,
            "override_optimizer_config": under(
                options.verl, ACTOR + "optim.override_optimizer_config."
            )
            or None,
        },
    )


def _made(make: Callable[..., Config], values: Mapping[str, JsonValue | object]) -> Config:
    try:
        return make(**values)
    # verl's configurations also check themselves with assertions.
    except (TypeError, ValueError, AssertionError, NotImplementedError, OSError) as error:
        raise ConfigError(
            f"verl refuses its configuration: {error}", param="trainer.settings.verl"
        ) from error
