"""A bound on how far one update moves the policy: `AlgorithmConfig.max_update_kl`."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from ajet_core.protocol.run import AlgorithmConfig

__all__ = [
    "AIM",
    "MAX_UPDATE_KL",
    "MOVED_TOKENS",
    "SHORTENED_TIMES",
    "LastUpdate",
    "limit_of",
    "shorten_to",
]

MAX_UPDATE_KL = 0.01
"""Default of `AlgorithmConfig.max_update_kl`, in nats per token; TRPO's bound."""
MOVED_TOKENS = 4096
"""The move of an update is measured on sequences with about this many tokens."""
AIM = 0.8
"""Updates are shortened to this share of the limit, because rounding could exceed the limit
itself."""
SHORTENED_TIMES = 10
"""An update that is still too large after so many attempts is undone completely."""


def limit_of(algorithm: AlgorithmConfig) -> float:
    """Return the limit in nats per token; 0 for none."""
    return MAX_UPDATE_KL if algorithm.max_update_kl is None else algorithm.max_update_kl


def shorten_to(
    limit: float, divergence: Callable[[], float], shorten: Callable[[float], None]
) -> tuple[float, bool]:
    """Shorten an applied update until it moves the policy by at most `limit`.

    :param divergence: measures the distance of the policy from that before the update.
    :param shorten: undoes a share, in (0, 1], of what remains of the update.
    :return: the final distance, and whether the update was shortened.
    """
    moved = divergence()
    if moved <= limit:
        return moved, False
    for _ in range(SHORTENED_TIMES):
        # At first, the divergence grows with the square of the distance. If it is not finite,
        # guess.
        share = 1 - math.sqrt(AIM * limit / moved) if math.isfinite(moved) else 0.9
        shorten(max(share, 0.1))
        moved = divergence()
        if moved <= limit:
            return moved, True
    shorten(1.0)
    return 0.0, True


class LastUpdate:
    """The last update of an AdamW, which can be undone in part.

    The previous weights are computed from the current ones and the optimiser's state, without a
    copy: AdamW maps ``w`` to ``(1 - r d) w - r m / (sqrt(v) + eps)``, with bias-corrected moments,
    rate r and weight decay d.

    :param adamw: all its parameter groups have the same learning rate. If `UpdateClipping` bounds
        its updates, this object must be created first, so that it records the applied rate.
    """

    def __init__(self, adamw: torch.optim.Optimizer) -> None:
        self._adamw = adamw
        self._rate = 0.0
        # Weights without a gradient were not updated.
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
        """Undo a share of the update; the moments are kept.

        :param share: share of what remains of the update, in (0, 1].
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
