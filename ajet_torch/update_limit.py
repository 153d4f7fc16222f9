"""Bounds how far one update moves the policy: `AlgorithmConfig.max_update_kl`."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from ajet_core.protocol.run import AlgorithmConfig

MAX_UPDATE_KL = 0.01
"""What `AlgorithmConfig.max_update_kl` is if it is not set, in nats a token; TRPO's bound."""
MOVED_TOKENS = 4096
"""How far an update moves the policy is measured on sequences of about so many tokens."""
AIM = 0.8
"""Updates are shortened to this share of the limit. To the limit itself, rounding would decide whether once is enough."""
SHORTENED_TIMES = 10
"""An update that is too large after so many attempts to shorten it is taken back whole."""


def limit_of(algorithm: AlgorithmConfig) -> float:
    """The limit that is in force, in nats a token; 0 for none."""
    return MAX_UPDATE_KL if algorithm.max_update_kl is None else algorithm.max_update_kl


def shorten_to(
    limit: float, divergence: Callable[[], float], shorten: Callable[[float], None]
) -> tuple[float, bool]:
    """Shorten an update that has been applied until it moves the policy by `limit` at most.

    :param divergence: measures how far the policy is from where it was before the update.
    :param shorten: takes back a share, in (0, 1], of what is left of the update.
    :return: how far the policy has moved in the end, and whether the update was shortened.
    """
    moved = divergence()
    if moved <= limit:
        return moved, False
    for _ in range(SHORTENED_TIMES):
        # A divergence grows with the square of the way, at first. Where it is not finite, nothing is known of it.
        share = 1 - math.sqrt(AIM * limit / moved) if math.isfinite(moved) else 0.9
        shorten(max(share, 0.1))
        moved = divergence()
        if moved <= limit:
            return moved, True
    shorten(1.0)
    return 0.0, True


class LastUpdate:
    """The last update of an AdamW, which can be taken back in part.

    What the weights were before is computed from them and the optimiser's state, so that no copy of them is needed:
    AdamW makes ``(1 - r d) w - r m / (sqrt(v) + eps)`` of ``w``, with bias-corrected moments, rate r and weight
    decay d.

    :param adamw: all its parameter groups have the same learning rate. If `UpdateClipping` bounds its updates, this
        object has to be made first, so that it notes the rate that was applied.
    """

    def __init__(self, adamw: torch.optim.Optimizer) -> None:
        self._adamw = adamw
        self._rate = 0.0
        # Those that had no gradient were not updated.
        self._updated: set[torch.Tensor] = set()
        adamw.register_step_post_hook(self._note)

    def _note(self, adamw: torch.optim.Optimizer, *_: object) -> None:
        self._rate = adamw.param_groups[0]["lr"]
        self._updated = {
            weights
            for group in adamw.param_groups
            for weights in group["params"]
            if weights.grad is not None
        }

    @torch.no_grad()
    def shorten(self, share: float) -> None:
        """Take a share of it back; the moments stay.

        :param share: of what is left of it, in (0, 1].
        """
        rate = self._rate
        for group in self._adamw.param_groups:
            first, second = group["betas"]
            kept = 1 - rate * group["weight_decay"]
            for weights in self._updated.intersection(group["params"]):
                state = self._adamw.state[weights]
                step = float(state["step"])
                root = (state["exp_avg_sq"] / (1 - second**step)).sqrt_().add_(group["eps"])
                update = (state["exp_avg"] / (1 - first**step)).div_(root)
                weights.lerp_(update.mul_(rate).add_(weights).div_(kept), share)
        self._rate = rate * (1 - share)
