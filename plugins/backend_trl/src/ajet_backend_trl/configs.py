"""Configuration of TRL's trainers for a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import trl
from trl import DistillationConfig, GRPOConfig, SFTConfig

from ajet_backend_trl.plan import LOSS_OF
from ajet_backend_trl.settings import (
    TrlDistillationSettings,
    TrlSettings,
    TrlSftSettings,
    TrlTrainerSettings,
)
from ajet_backend_trl.sharding import fsdp_config
from ajet_backend_trl.stepped import NEVER
from ajet_core.errors import ConfigError
from ajet_core.protocol import AlgorithmConfig

Config = TypeVar("Config")


@dataclass(frozen=True, slots=True)
class RunPlace:
    """Where a run is computed.

    :param output_dir: a directory for TRL; nothing is written into it.
    :param bf16: compute under autocast.
    """

    output_dir: Path
    seed: int
    cpu: bool
    bf16: bool


def grpo_config(
    algorithm: AlgorithmConfig, options: TrlTrainerSettings, place: RunPlace
) -> GRPOConfig:
    """Make the configuration of `trl.GRPOTrainer`.

    :raises ConfigError: TRL does not accept a value of ``trainer.settings.grpo``.
    """
    truncated = algorithm.importance == "truncated"
    if options.loss_type is not None and algorithm.aggregation != "token_mean":
        raise ConfigError(
            f"trainer.settings.loss_type {options.loss_type!r} and algorithm.aggregation "
            f"{algorithm.aggregation!r} both define how tokens are weighted: leave out one "
            "of them",
            param="algorithm.aggregation",
        )
    known = {each.name for each in fields(GRPOConfig)}
    if unknown := sorted(options.grpo.keys() - known):
        raise ConfigError(
            f"TRL {trl.__version__} has no field {unknown[0]!r} in its GRPOConfig",
            param=f"trainer.settings.grpo.{unknown[0]}",
        )
    return _made(
        GRPOConfig,
        {
            # dr_grpo divides by this; 1 keeps the sum of an episode.
            "max_completion_length": 1,
            # Use the plain k3 estimator that `AlgorithmConfig.kl_coef` documents; TRL would weight
            # it with the ratio.
            "use_bias_correction_kl": False,
            **options.grpo,
            **_common(algorithm, options, place),
            "loss_type": options.loss_type or LOSS_OF[algorithm.aggregation],
            "importance_sampling_level": options.importance_sampling_level,
            "beta": algorithm.kl_coef,
            "epsilon": algorithm.clip_low,
            # CISPO caps the ratio itself, the other losses clip above 1 + epsilon_high.
            "epsilon_high": algorithm.clip_high + (options.loss_type == "cispo"),
            "entropy_coef": algorithm.entropy_coef,
            # `TrlPolicy` sets ``use_vllm`` after the trainer is created.
            "vllm_importance_sampling_correction": truncated,
            "vllm_importance_sampling_mode": "token_truncate",
            # Their product must be a multiple of the group size, and TRL requires groups of at
            # least two.
            "per_device_train_batch_size": 2,
            "num_generations": 2,
            "scale_rewards": "none",
            "shuffle_dataset": False,
        },
    )


def sft_config(algorithm: AlgorithmConfig, options: TrlSftSettings, place: RunPlace) -> SFTConfig:
    """Make the configuration of `trl.SFTTrainer`.

    :raises ConfigError: TRL does not accept it.
    """
    return _made(
        SFTConfig,
        {
            **_common(algorithm, options, place),
            "loss_type": options.loss_type,
            "per_device_train_batch_size": 1,
            # Batches are already tokenised.
            "dataset_kwargs": {"skip_prepare_dataset": True},
            "max_length": None,
        },
    )


def distillation_config(
    algorithm: AlgorithmConfig, options: TrlDistillationSettings, place: RunPlace
) -> DistillationConfig:
    """Make the configuration of `trl.DistillationTrainer`.

    :raises ConfigError: TRL does not accept it.
    """
    return _made(
        DistillationConfig,
        {
            **_common(algorithm, options, place),
            "beta": options.beta,
            # Each token is compared at its own sampling temperature.
            "temperature": 1.0,
            "per_device_train_batch_size": 1,
            "shuffle_dataset": False,
        },
    )


def _common(algorithm: AlgorithmConfig, options: TrlSettings, place: RunPlace) -> dict[str, Any]:
    return {
        "output_dir": str(place.output_dir),
        "seed": place.seed,
        "use_cpu": place.cpu,
        "bf16": place.bf16,
        "fp16": False,
        "ddp_backend": "gloo" if place.cpu and options.processes > 1 else None,
        "ddp_find_unused_parameters": False,
        "fsdp": options.distribution == "fsdp" or None,
        "fsdp_config": fsdp_config(options.fsdp) if options.distribution == "fsdp" else None,
        "max_steps": NEVER,
        "learning_rate": algorithm.learning_rate,
        "max_grad_norm": algorithm.max_grad_norm,
        # The worker does the warm-up, which counts training steps, not optimiser steps.
        "lr_scheduler_type": "constant",
        "gradient_checkpointing": options.gradient_checkpointing,
        "remove_unused_columns": False,
        "dataloader_pin_memory": False,
        "save_strategy": "no",
        "logging_strategy": "no",
        "logging_nan_inf_filter": False,
        "report_to": "none",
        "disable_tqdm": True,
    }


def _made(make: Callable[..., Config], values: dict[str, Any]) -> Config:
    try:
        return make(**values)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"TRL refuses its configuration: {error}", param="trainer.settings.grpo"
        ) from error
