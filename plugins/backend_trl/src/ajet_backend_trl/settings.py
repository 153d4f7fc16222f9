"""Settings of the trainers; the server validates them without importing torch or TRL."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator

from ajet_core.interfaces import ComponentSettings, ModelDirectory

LossType = Literal["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"]

PASSED_ON = frozenset(
    {
        "cast_lm_head_to_fp32",
        "delta",
        "gradient_checkpointing_kwargs",
        "max_completion_length",
        "off_policy_mask_threshold",
        "router_aux_loss_coef",
        "sapo_temperature_neg",
        "sapo_temperature_pos",
        "tf32",
        "top_entropy_quantile",
        "torch_empty_cache_steps",
        "use_bias_correction_kl",
        "vespo_k_neg",
        "vespo_k_pos",
        "vespo_lambda_neg",
        "vespo_lambda_pos",
    }
)
"""Fields of `trl.GRPOConfig` that a run may set.

They exclude paths, hubs, code to load, and everything with a state that checkpoints do not
contain."""

ELSEWHERE = {
    "adam_beta1": "algorithm.adam_betas",
    "adam_beta2": "algorithm.adam_betas",
    "beta": "algorithm.kl_coef",
    "bf16": "model.dtype",
    "entropy_coef": "algorithm.entropy_coef",
    "epsilon": "algorithm.clip_low",
    "epsilon_high": "algorithm.clip_high",
    "gradient_accumulation_steps": "algorithm.token_budget",
    "gradient_checkpointing": "trainer.settings.gradient_checkpointing",
    "importance_sampling_level": "trainer.settings.importance_sampling_level",
    "learning_rate": "algorithm.learning_rate",
    "loss_type": "trainer.settings.loss_type",
    "lr_scheduler_type": "algorithm.schedule",
    "max_grad_norm": "algorithm.max_grad_norm",
    "num_generations": "batch.episodes_per_task",
    "num_iterations": "algorithm.epochs",
    "per_device_train_batch_size": "algorithm.token_budget",
    "scale_rewards": "algorithm.advantage",
    "seed": "seed",
    "steps_per_generation": "algorithm.minibatches",
    "vllm_importance_sampling_clip_max": "algorithm.importance_cap",
    "vllm_importance_sampling_correction": "algorithm.importance",
    "warmup_steps": "algorithm.warmup_steps",
    "weight_decay": "algorithm.weight_decay",
}
"""Fields of `trl.GRPOConfig` that a run sets elsewhere."""


class FsdpSettings(ComponentSettings):
    """Options of FSDP2, with the names of `transformers.TrainingArguments.fsdp_config`.

    :param reshard_after_forward: free a layer's gathered weights after its forward pass, and gather
        them again in the backward pass: less memory, more communication. False corresponds to
        ZeRO-2.
    :param auto_wrap_policy: what is gathered at once: one of the model's layers, or the whole
        model. (accelerate's FSDP2 fails with ``SIZE_BASED_WRAP`` on models whose layers are a
        list.)
    :param transformer_layer_cls_to_wrap: class names of layers; None uses those that the model
        names.
    :param cpu_offload: keep shards and optimiser in host memory.
    :param reduce_dtype: dtype in which gradients of a bfloat16 model are averaged.
    """

    reshard_after_forward: bool = True
    auto_wrap_policy: Literal["TRANSFORMER_BASED_WRAP", "NO_WRAP"] = "TRANSFORMER_BASED_WRAP"
    transformer_layer_cls_to_wrap: tuple[str, ...] | None = None
    cpu_offload: bool = False
    reduce_dtype: Literal["float32", "bfloat16"] = "float32"

    @model_validator(mode="after")
    def _classes_are_used(self) -> Self:
        if self.transformer_layer_cls_to_wrap and self.auto_wrap_policy != "TRANSFORMER_BASED_WRAP":
            raise ValueError("transformer_layer_cls_to_wrap needs TRANSFORMER_BASED_WRAP")
        return self


ZERO_KEYS = frozenset(
    {
        "allgather_bucket_size",
        "allgather_partitions",
        "contiguous_gradients",
        "overlap_comm",
        "reduce_bucket_size",
        "reduce_scatter",
        "round_robin_gradients",
        "stage3_max_live_parameters",
        "stage3_max_reuse_distance",
        "stage3_param_persistence_threshold",
        "stage3_prefetch_bucket_size",
        "sub_group_size",
    }
)
"""Keys of DeepSpeed's ``zero_optimization`` that a run may set: sizes and switches.

They exclude paths, and everything that changes what is trained."""


class DeepSpeedSettings(ComponentSettings):
    """Options of DeepSpeed.

    :param zero_stage: 2 partitions gradients and optimiser; 3 also partitions weights.
    :param offload_optimizer: keep masters and optimiser in host memory.
    :param offload_param: keep weights in host memory; needs stage 3.
    :param zero_optimization: further keys of DeepSpeed's section of this name, from `ZERO_KEYS`.
    """

    zero_stage: Literal[2, 3] = 2
    offload_optimizer: bool = False
    offload_param: bool = False
    zero_optimization: dict[str, bool | int] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _keys_may_be_set(self) -> Self:
        if self.offload_param and self.zero_stage != 3:
            raise ValueError("offload_param needs zero_stage 3")
        if unknown := sorted(self.zero_optimization.keys() - ZERO_KEYS):
            raise ValueError(
                f"zero_optimization.{unknown[0]} cannot be set by a run; allowed keys: "
                f"{', '.join(sorted(ZERO_KEYS))}"
            )
        return self


class TrlSettings(ComponentSettings):
    """Settings that all trainers of this plugin share.

    :param device: ``cpu`` or ``cuda``; ``auto`` uses CUDA if it is available.
    :param threads: CPU threads of one operation. None means 1 on the CPU, and torch's own default
        on CUDA.
    :param gradient_checkpointing: recompute activations in the backward pass: slower, much less
        memory.
    :param grad_norm_limit: refuse a step if its gradient norm before clipping is higher. None
        allows any finite norm.
    :param processes: number of data-parallel processes on this machine, one for each GPU.
    :param distribution: how processes share the model: with ``ddp`` each has all of it, with
        ``fsdp`` and ``deepspeed`` each has a part.
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: Annotated[int, Field(ge=1)] | None = None
    gradient_checkpointing: bool = False
    grad_norm_limit: Annotated[float, Field(gt=0)] | None = 1e6
    processes: Annotated[int, Field(ge=1, le=64)] = 1
    distribution: Literal["ddp", "fsdp", "deepspeed"] = "ddp"
    fsdp: FsdpSettings = Field(default_factory=FsdpSettings)
    deepspeed: DeepSpeedSettings = Field(default_factory=DeepSpeedSettings)

    @model_validator(mode="after")
    def _distribution_fits(self) -> Self:
        if self.distribution != "ddp" and self.processes < 2:
            raise ValueError(
                f"distribution {self.distribution} divides a model among processes: set processes "
                "to 2 or more"
            )
        for name, changed in (
            ("fsdp", self.fsdp != FsdpSettings()),
            ("deepspeed", self.deepspeed != DeepSpeedSettings()),
        ):
            if changed and self.distribution != name:
                raise ValueError(f"{name} has settings, but distribution is {self.distribution}")
        return self


class TrlSftSettings(TrlSettings):
    """Settings of the trainer ``trl_sft``.

    :param loss_type: ``nll``, or ``dft``, which weighs each token with its probability
        (arXiv:2508.05629).
    :param min_reward: do not train on episodes with a lower reward.
    """

    loss_type: Literal["nll", "dft"] = "nll"
    min_reward: float | None = None


class TrlDistillationSettings(TrlSettings):
    """Settings of the trainer ``trl_distillation``.

    :param teacher: model directory of the teacher, which must have the student's vocabulary.
    :param teacher_dtype: as `ModelConfig.dtype`.
    :param beta: as in `trl.DistillationConfig`: 1 minimises the reverse KL divergence, from student
        to teacher, 0 the forward one, and values between a Jensen-Shannon divergence
        (arXiv:2306.13649, equation 1).
    """

    teacher: Annotated[str, ModelDirectory()]
    teacher_dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    beta: Annotated[float, Field(ge=0, le=1)] = 1.0


class TrlTrainerSettings(TrlSettings):
    """Settings of the trainer ``trl``.

    :param loss_type: as in `trl.GRPOConfig`, with TRL's own weights of tokens, where a row is a
        sequence of the batch. None selects the loss by `AlgorithmConfig.aggregation`: ``dapo`` for
        ``token_mean``, ``dr_grpo`` for ``episode_sum``, ``grpo`` for the others.
    :param importance_sampling_level: level of the ratios, as in `trl.GRPOConfig`; ``sequence`` is
        GSPO (arXiv:2507.18071), whose authors use it with ``loss_type`` ``grpo``.
    :param grpo: further fields of `trl.GRPOConfig`, from `PASSED_ON`.
    """

    loss_type: LossType | None = None
    importance_sampling_level: Literal["token", "sequence"] = "token"
    grpo: dict[str, JsonValue] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fields_may_be_set(self) -> Self:
        for name in sorted(self.grpo.keys() - PASSED_ON):
            if name in ELSEWHERE:
                raise ValueError(f"grpo.{name} is set by {ELSEWHERE[name]}")
            raise ValueError(
                f"grpo.{name} cannot be set by a run; allowed fields: "
                f"{', '.join(sorted(PASSED_ON))}"
            )
        return self
