"""The loss of a worker: a policy loss of verl, with verl's KL and entropy terms.

verl's own `ppo_loss` weights tokens by the rows of a minibatch. This differs from what the run's
configuration says when rows are left out or an episode has several. So the loss is composed here
from the same parts of verl, with the counts and weights that come with the batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import TensorDict
from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn, kl_penalty
from verl.utils import tensordict_utils as tu
from verl.workers.config import FSDPActorConfig
from verl.workers.utils.padding import no_padding_2_padding

from ajet_backend_verl.part import SUMS

PADDED = (
    "response_mask",
    "old_log_probs",
    "advantages",
    "ref_log_prob",
    "rollout_is_weights",
    "weights",
)
"""[R, C] tensors that come with the rows; the last three are optional."""


@dataclass(slots=True)
class Objective:
    """The loss function of a worker, which verl's engine calls.

    :param weighs_itself: whether the policy loss is a mean over the rows of a micro-batch, without
        regard to the minibatch.
    :ivar sums: `ajet_backend_verl.part.SUMS` over the tokens of this worker since `begin`.
    """

    config: FSDPActorConfig
    weighs_itself: bool = False
    sums: dict[str, float] = field(default_factory=dict)

    def begin(self) -> None:
        """Reset the sums."""
        self.sums = dict.fromkeys(SUMS, 0.0)

    def __call__(
        self,
        model_output: dict[str, torch.Tensor],
        data: TensorDict,
        dp_group: object = None,  # noqa: ARG002
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return the loss of a micro-batch, times the number of workers that average gradients."""
        logprobs = no_padding_2_padding(model_output["log_probs"], data)
        entropy = model_output.get("entropy")
        entropy = None if entropy is None else no_padding_2_padding(entropy, data)
        padded = data.select(*PADDED, strict=False).to_padded_tensor()
        mask = padded["response_mask"].bool()
        weights = padded.get("weights", None)
        workers = int(data["dp_size"])
        config = self.config
        config.global_batch_info.update(
            dp_size=workers,
            batch_num_tokens=tu.get_non_tensor_data(data, "minibatch_tokens", None),
            global_batch_size=tu.get_non_tensor_data(data, "minibatch_rows", None),
            loss_scale_factor=config.loss_scale_factor,
        )
        advantages = padded["advantages"]
        loss, measured = get_policy_loss_fn(config.policy_loss.loss_mode)(
            old_log_prob=padded["old_log_probs"],
            log_prob=logprobs,
            advantages=advantages if weights is None else advantages * weights,
            response_mask=mask,
            loss_agg_mode=config.loss_agg_mode if weights is None else "token-sum",
            config=config,
            rollout_is_weights=padded.get("rollout_is_weights", None),
        )
        if self.weighs_itself:
            loss = loss * len(mask) / config.global_batch_info["global_batch_size"] * workers
        if entropy is not None and config.entropy_coeff:
            loss = loss - config.entropy_coeff * self._aggregate(entropy, mask, weights)
        divergence = None
        if config.use_kl_loss:
            divergence = kl_penalty(logprobs, padded["ref_log_prob"], config.kl_loss_type)
            loss = loss + config.kl_loss_coef * self._aggregate(divergence, mask, weights)
        self._measure(mask, logprobs, entropy, divergence, measured)
        return loss, {}

    def _aggregate(
        self, values: torch.Tensor, mask: torch.Tensor, weights: torch.Tensor | None
    ) -> torch.Tensor:
        info = self.config.global_batch_info
        if weights is None:
            loss: torch.Tensor = agg_loss(values, mask, self.config.loss_agg_mode, **info)
        else:
            loss = agg_loss(values * weights, mask, "token-sum", **info)
        return loss

    @torch.no_grad()
    def _measure(
        self,
        mask: torch.Tensor,
        logprobs: torch.Tensor,
        entropy: torch.Tensor | None,
        divergence: torch.Tensor | None,
        measured: dict[str, Any],
    ) -> None:
        tokens = float(mask.sum())
        self.sums["tokens"] += tokens
        # Rows of padding add nothing, and verl's means of them are NaN.
        if not tokens:
            return
        self.sums["logprob"] += float(logprobs[mask].double().sum())
        if entropy is not None:
            self.sums["entropy"] += float(entropy[mask].double().sum())
        if divergence is not None:
            self.sums["kl"] += float(divergence[mask].double().sum())
        self.sums["clipped"] += float(measured.get("actor/pg_clipfrac", 0.0)) * tokens
