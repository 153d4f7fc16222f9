"""The algorithm settings for tiny models."""

from __future__ import annotations

from ajet_core.protocol import AlgorithmConfig

TINY_GRPO = AlgorithmConfig(
    advantage="group_std",
    clip_low=0.2,
    clip_high=0.3,
    minibatches=4,
    learning_rate=1e-3,
    # Without a warm-up the first steps destroy the form of the tool call.
    warmup_steps=5,
    adam_betas=(0.9, 0.99),
    max_grad_norm=1.0,
    kl_coef=0.0,
)
"""GRPO (Shao et al. 2024, arXiv:2402.03300) with clip-higher (DAPO, arXiv:2503.14476); no KL."""
