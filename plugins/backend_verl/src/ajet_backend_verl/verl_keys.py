"""The keys of verl's configuration that a run may set, named as on verl's command line.

The server checks them before anything starts, without importing verl. Values are checked by the
types here, because verl's own dataclasses accept any value.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, StrictBool, TypeAdapter, ValidationError

ACTOR = "actor_rollout_ref.actor."
FSDP = ACTOR + "fsdp_config."
OPTIMISER = ACTOR + "optim."
MODEL = "actor_rollout_ref.model."
CORRECTION = "algorithm.rollout_correction."

Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(gt=0, le=1)]
Bounds = Annotated[
    str, Field(pattern=r"^[0-9.eE+-]+(_[0-9.eE+-]+)?(,[0-9.eE+-]+(_[0-9.eE+-]+)?)*$")
]
_REJECTION = "((token|seq_sum|seq_mean)_k[123]|seq_max_k[23])"
Rejection = Annotated[str, Field(pattern=f"^{_REJECTION}(, ?{_REJECTION})*$")]
KlLossType = Literal[
    "kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "kl+", "k1+", "abs+", "low_var_kl+", "k3+"
]

PASSED_ON: Mapping[str, Any] = {
    ACTOR + "clip_ratio_c": Annotated[float, Field(gt=1)],
    ACTOR + "kl_loss_type": KlLossType,
    ACTOR + "loss_scale_factor": Annotated[int, Field(ge=1)],
    OPTIMISER + "override_optimizer_config.eps": Positive,
    ACTOR + "policy_loss.clip_cov_lb": float,
    ACTOR + "policy_loss.clip_cov_ratio": Share,
    ACTOR + "policy_loss.clip_cov_ub": float,
    ACTOR + "policy_loss.dro_beta": Positive,
    ACTOR + "policy_loss.kl_cov_ratio": Share,
    ACTOR + "policy_loss.ppo_kl_coef": Annotated[float, Field(ge=0)],
    ACTOR + "tau_neg": Positive,
    ACTOR + "tau_pos": Positive,
    FSDP + "entropy_checkpointing": StrictBool,
    FSDP + "entropy_from_logits_chunk_size": Annotated[int, Field(ge=1)],
    FSDP + "entropy_from_logits_with_chunking": StrictBool,
    FSDP + "forward_prefetch": StrictBool,
    FSDP + "fsdp_size": Annotated[int, Field(ge=-1)],
    FSDP + "offload_policy": StrictBool,
    FSDP + "optimizer_offload": StrictBool,
    FSDP + "param_offload": StrictBool,
    FSDP + "reshard_after_forward": StrictBool,
    FSDP + "use_no_sync_for_gradient_accumulation": StrictBool,
    FSDP + "use_torch_compile": StrictBool,
    MODEL + "enable_activation_offload": StrictBool,
    MODEL + "override_config.attn_implementation": Literal[
        "eager", "sdpa", "flash_attention_2", "flash_attention_3"
    ],
    MODEL + "use_liger": StrictBool,
    MODEL + "use_remove_padding": StrictBool,
    "algorithm.gamma": Annotated[float, Field(ge=0, le=1)],
    "algorithm.norm_adv_by_std_in_grpo": StrictBool,
    CORRECTION + "bypass_mode": StrictBool,
    CORRECTION + "loss_type": Literal["ppo_clip", "reinforce"],
    CORRECTION + "rollout_is": Literal["token", "sequence"] | None,
    CORRECTION + "rollout_is_batch_normalize": StrictBool,
    CORRECTION + "rollout_is_threshold": Positive | Bounds,
    CORRECTION + "rollout_rs": Rejection | None,
    CORRECTION + "rollout_rs_threshold": Positive | Bounds | None,
}
"""Keys that a run may set, and the types of their values.

They exclude paths, code to load, and everything with a state that checkpoints do not contain."""

ELSEWHERE: Mapping[str, str] = {
    ACTOR + "clip_ratio": "algorithm.clip_low and algorithm.clip_high",
    ACTOR + "clip_ratio_high": "algorithm.clip_high",
    ACTOR + "clip_ratio_low": "algorithm.clip_low",
    ACTOR + "data_loader_seed": "seed",
    ACTOR + "entropy_coeff": "algorithm.entropy_coef",
    ACTOR + "grad_clip": "algorithm.max_grad_norm",
    ACTOR + "kl_loss_coef": "algorithm.kl_coef",
    ACTOR + "loss_agg_mode": "trainer.settings.loss_agg_mode",
    OPTIMISER + "betas": "algorithm.adam_betas",
    OPTIMISER + "clip_grad": "algorithm.max_grad_norm",
    OPTIMISER + "lr": "algorithm.learning_rate",
    OPTIMISER + "lr_scheduler_type": "algorithm.schedule",
    OPTIMISER + "lr_warmup_steps": "algorithm.warmup_steps",
    OPTIMISER + "weight_decay": "algorithm.weight_decay",
    ACTOR + "policy_loss.loss_mode": "trainer.settings.loss_mode",
    ACTOR + "ppo_epochs": "algorithm.epochs",
    ACTOR + "ppo_max_token_len_per_gpu": "algorithm.token_budget",
    ACTOR + "ppo_micro_batch_size": "algorithm.token_budget",
    ACTOR + "ppo_micro_batch_size_per_gpu": "algorithm.token_budget",
    ACTOR + "ppo_mini_batch_size": "algorithm.minibatches",
    ACTOR + "use_kl_loss": "algorithm.kl_coef",
    FSDP + "model_dtype": "model.dtype",
    FSDP + "seed": "seed",
    MODEL + "enable_gradient_checkpointing": "trainer.settings.gradient_checkpointing",
    MODEL + "lora_alpha": "model.lora.alpha",
    MODEL + "lora_rank": "model.lora.rank",
    MODEL + "path": "model.path",
    MODEL + "target_modules": "model.lora.target_modules",
    "actor_rollout_ref.rollout.n": "batch.episodes_per_task",
    "algorithm.adv_estimator": "trainer.settings.adv_estimator",
    "data.train_batch_size": "batch.tasks",
    "trainer.n_gpus_per_node": "trainer.settings.workers_per_node",
    "trainer.nnodes": "trainer.settings.nodes",
    "trainer.save_freq": "checkpoint_every",
    "trainer.total_training_steps": "steps",
}
"""Keys that a run sets elsewhere."""

REFUSED: Mapping[str, str] = {
    OPTIMISER + "optimizer": (
        "the optimiser is torch's AdamW; checkpoints do not have the state of others"
    ),
    OPTIMISER + "optimizer_impl": "a run cannot import modules",
    ACTOR + "strategy": "it is always fsdp2",
    ACTOR + "ulysses_sequence_parallel_size": "sequences are not divided over workers",
    FSDP + "ulysses_sequence_parallel_size": "sequences are not divided over workers",
    FSDP + "strategy": "it is always fsdp2",
    MODEL + "external_lib": "a run cannot import modules",
    MODEL + "trust_remote_code": "no code of a model is ever run",
    "algorithm.lam": "it applies only to gae, which needs a critic, and there is none",
    "algorithm.use_kl_in_reward": (
        "rewards come with the batch; algorithm.kl_coef adds a KL term to the loss"
    ),
}
"""Keys that no run can set, and why."""


def checked(values: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the values, converted for verl.

    :raises ValueError: a key cannot be set, or does not accept its value; the message names it.
    """
    accepted: dict[str, JsonValue] = {}
    for name in sorted(values):
        if name not in PASSED_ON:
            raise ValueError(_why_not(name))
        try:
            accepted[name] = TypeAdapter(PASSED_ON[name]).validate_python(values[name])
        except ValidationError as error:
            reason = error.errors(include_url=False)[0]["msg"]
            raise ValueError(f"verl's {name} cannot be {values[name]!r}: {reason}") from error
    return accepted


def _why_not(name: str) -> str:
    if name in ELSEWHERE:
        return f"verl's {name} is set by {ELSEWHERE[name]}"
    if name in REFUSED:
        return f"verl's {name} cannot be set by a run: {REFUSED[name]}"
    if name.startswith("actor_rollout_ref.rollout."):
        return (
            f"verl's {name} cannot be set: the engine does the rollouts, see engine.settings and "
            "the agents' requests"
        )
    if name.startswith(("critic.", "reward.", "reward_model.")):
        return f"verl's {name} cannot be set: rewards come with the batch, and there is no critic"
    near = get_close_matches(name, PASSED_ON, 1)
    hint = f"did you mean {near[0]}?" if near else f"the allowed keys are {', '.join(PASSED_ON)}"
    return f"verl has no key {name} that a run may set; {hint}"


def under(values: Mapping[str, JsonValue], prefix: str) -> dict[str, JsonValue]:
    """Return the values of the keys directly below a prefix, by the rest of their names."""
    return {
        name.removeprefix(prefix): value
        for name, value in values.items()
        if name.startswith(prefix) and "." not in name.removeprefix(prefix)
    }
