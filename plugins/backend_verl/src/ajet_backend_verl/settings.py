"""Settings of the trainer; the server validates them without importing torch, Ray or verl."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from ajet_backend_verl.verl_keys import ACTOR, CORRECTION, checked, under
from ajet_core.errors import ConfigError
from ajet_core.interfaces import ComponentSettings
from ajet_core.protocol import AlgorithmConfig

LossMode = Literal[
    "vanilla",
    "dppo_tv",
    "dppo_kl",
    "gspo",
    "sapo",
    "gpg",
    "clip_cov",
    "kl_cov",
    "geo_mean",
    "dro",
    "cispo",
]
LossAggMode = Literal[
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
]

ESTIMATORS = frozenset(
    {
        "gpg",
        "grpo",
        "grpo_passk",
        "grpo_vectorized",
        "opo",
        "reinforce_plus_plus",
        "reinforce_plus_plus_baseline",
        "rloo",
        "rloo_vectorized",
    }
)
"""verl's advantage estimators that need only rewards."""

_WHOLE_VOCABULARY = (
    "it needs the squared probabilities of the whole vocabulary, which are not computed"
)
OTHER_ESTIMATORS: Mapping[str, str] = {
    "gae": "it needs a critic, and there is none",
    "gdpo": "it needs a reward for each of several dimensions, and an episode has one",
    "optimal_token_baseline": _WHOLE_VOCABULARY,
    "remax": "it needs the reward of a greedy rollout of each task, and there is none",
    "tir_optimal_token_baseline": _WHOLE_VOCABULARY,
}
"""Unsupported estimators, and why."""

NOT_PROPORTIONAL = frozenset({"clip_cov", "kl_cov", "dro", "sapo", "geo_mean"})
"""Losses with terms that are not proportional to a token's advantage, or with their own weights."""

WEIGHS_ITSELF = frozenset({"sapo", "geo_mean"})
"""Losses of verl that ignore `loss_agg_mode`."""


class VerlTrainerSettings(ComponentSettings):
    """Settings of the trainer ``verl``.

    :param device: ``cpu`` or ``cuda``; ``auto`` uses CUDA if it is available.
    :param threads: CPU threads of one operation of a worker. None means 1 on the CPU, and torch's
        own default on CUDA.
    :param nodes: number of machines of the Ray cluster that have workers.
    :param workers_per_node: number of workers on each machine; each has a GPU, or a CPU.
    :param start_seconds: how long to wait for a place for all workers, for example while a node is
        down.
    :param adv_estimator: verl's ``algorithm.adv_estimator``, see `ESTIMATORS`. None uses the
        advantages of the batch, which follow `AlgorithmConfig.advantage`, ``call_credit`` and
        ``discount``.
    :param loss_mode: verl's ``actor_rollout_ref.actor.policy_loss.loss_mode``.
    :param loss_agg_mode: verl's ``actor_rollout_ref.actor.loss_agg_mode``, with verl's own weights
        of tokens, where a row is a sequence of the batch. None weights tokens by
        `AlgorithmConfig.aggregation`.
    :param gradient_checkpointing: recompute activations in the backward pass: slower, much less
        memory.
    :param offload: keep weights and optimiser in host memory between steps, so that an engine on
        the same GPUs can use their memory.
    :param grad_norm_limit: refuse a step if its gradient norm before clipping is higher. None
        allows any finite norm.
    :param verl: further keys of verl's configuration, named as on verl's command line, from
        `ajet_backend_verl.verl_keys.PASSED_ON`.
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: Annotated[int, Field(ge=1)] | None = None
    nodes: Annotated[int, Field(ge=1, le=4096)] = 1
    workers_per_node: Annotated[int, Field(ge=1, le=64)] = 1
    start_seconds: Annotated[float, Field(gt=0)] = 300.0
    adv_estimator: str | None = None
    loss_mode: LossMode = "vanilla"
    loss_agg_mode: LossAggMode | None = None
    gradient_checkpointing: bool = False
    offload: bool = False
    grad_norm_limit: Annotated[float, Field(gt=0)] | None = 1e6
    verl: dict[str, JsonValue] = Field(default_factory=dict)

    @property
    def workers(self) -> int:
        """Number of workers on all nodes."""
        return self.nodes * self.workers_per_node

    @property
    def correction(self) -> dict[str, JsonValue]:
        """The settings of verl's ``algorithm.rollout_correction``; empty means off."""
        return under(self.verl, CORRECTION)

    @field_validator("verl")
    @classmethod
    def _keys_may_be_set(cls, values: dict[str, JsonValue]) -> dict[str, JsonValue]:
        return checked(values)

    @model_validator(mode="after")
    def _verl_takes_it(self) -> Self:
        self._check_estimator()
        self._check_loss()
        self._check_correction()
        return self

    def _check_estimator(self) -> None:
        name = self.adv_estimator
        if name is not None and name in OTHER_ESTIMATORS:
            raise ValueError(f"adv_estimator {name} is not possible: {OTHER_ESTIMATORS[name]}")
        if name is not None and name not in ESTIMATORS:
            raise ValueError(
                f"verl has no adv_estimator {name}; available: {', '.join(sorted(ESTIMATORS))}"
            )
        for key in ("algorithm.gamma", "algorithm.norm_adv_by_std_in_grpo"):
            if name is None and key in self.verl:
                raise ValueError(
                    f"verl's {key} applies only to verl's estimators: set adv_estimator, or "
                    "leave it out"
                )

    def _check_loss(self) -> None:
        if self.loss_mode in WEIGHS_ITSELF and self.loss_agg_mode is not None:
            raise ValueError(
                f"loss_mode {self.loss_mode} weights tokens by itself: leave out loss_agg_mode"
            )
        scaled = ACTOR + "loss_scale_factor"
        if scaled in self.verl and self.loss_agg_mode != "seq-mean-token-sum-norm":
            raise ValueError(
                f"verl's {scaled} applies only to loss_agg_mode seq-mean-token-sum-norm"
            )
        if self.loss_mode == "dro" and ACTOR + "policy_loss.dro_beta" not in self.verl:
            raise ValueError(f"loss_mode dro needs verl's {ACTOR}policy_loss.dro_beta")

    def _check_correction(self) -> None:
        correction = self.correction
        if correction.get("rollout_rs") and correction.get("rollout_rs_threshold") is None:
            raise ValueError(
                f"verl's {CORRECTION}rollout_rs needs {CORRECTION}rollout_rs_threshold"
            )
        if correction.get("bypass_mode") and self.loss_mode != "vanilla":
            raise ValueError(
                f"verl's {CORRECTION}bypass_mode has a loss of its own: leave out loss_mode "
                f"{self.loss_mode}"
            )
        if "loss_type" in correction and not correction.get("bypass_mode"):
            raise ValueError(
                f"verl's {CORRECTION}loss_type applies only to bypass_mode: set "
                f"{CORRECTION}bypass_mode"
            )


def check_algorithm(options: VerlTrainerSettings, algorithm: AlgorithmConfig) -> None:
    """Refuse settings that both configurations define, or that a loss of verl does not support.

    :raises ConfigError: a setting is refused; the message names it.
    """
    plain = AlgorithmConfig()
    if options.adv_estimator is not None:
        for name in ("advantage", "advantage_settings", "call_credit", "discount"):
            if getattr(algorithm, name) != getattr(plain, name):
                raise ConfigError(
                    f"trainer.settings.adv_estimator {options.adv_estimator!r} and "
                    f"algorithm.{name} both define the advantages: leave out one of them",
                    param=f"algorithm.{name}",
                )
    if algorithm.aggregation != plain.aggregation:
        if options.loss_agg_mode is not None:
            raise ConfigError(
                f"trainer.settings.loss_agg_mode {options.loss_agg_mode!r} and "
                f"algorithm.aggregation {algorithm.aggregation!r} both define how tokens are "
                "weighted: leave out one of them",
                param="algorithm.aggregation",
            )
        if options.loss_mode in NOT_PROPORTIONAL:
            raise ConfigError(
                f"verl's loss {options.loss_mode!r} cannot weight tokens by "
                f"algorithm.aggregation {algorithm.aggregation!r}: set "
                "trainer.settings.loss_agg_mode if the loss has one",
                param="algorithm.aggregation",
            )
    if options.correction and algorithm.importance == "truncated":
        raise ConfigError(
            f"algorithm.importance {algorithm.importance!r} and verl's "
            "algorithm.rollout_correction both define how tokens sampled by other weights "
            "are weighted: leave out one of them (in mode async, set the former to 'ratio')",
            param="algorithm.importance",
        )
