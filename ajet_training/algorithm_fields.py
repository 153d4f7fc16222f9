"""The settings of `AlgorithmConfig` that trainers declare to honour."""

from __future__ import annotations

__all__ = ["POLICY_GRADIENT_FIELDS"]

POLICY_GRADIENT_FIELDS = frozenset(
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
        "schedule",
        "schedule_steps",
        "weight_decay",
        "adam_betas",
        "max_grad_norm",
        "max_update_kl",
        "max_update_rms",
        "token_budget",
    }
)
"""What a trainer honours that maximises the clipped policy-gradient objective with AdamW.

It is written out, so that a new setting is refused by each trainer that does not list it.
"""
