"""A bound on how far one update of AdamW moves the weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.distributed.tensor import DTensor

__all__ = ["UpdateClipping"]


class UpdateClipping:
    """Divides the learning rate of each update of an AdamW by ``max(1, R / most)``.

    R is the root mean square of ``g / sqrt(v)`` over all weights that have a gradient ``g``; ``v``
    is the bias-corrected second moment that includes this ``g`` (StableAdamW: Wortsman et al. 2023,
    arXiv:2304.13013, there for each tensor separately; over all of them, the update keeps its
    direction). R is about 1 while gradients are as large as recently. A nearly converged policy has
    small gradients: the first large one would move every weight by several learning rates at once,
    which can undo learned behaviour in a single update. Clipping the gradient's norm does not
    prevent this, because Adam's update does not depend on the gradient's scale.

    :param adamw: an optimiser whose learning rates do not change between updates.
    :param most: limit of R, positive.
    :ivar scale: divisor of the learning rates of the last update.
    :param total: sums a process's tensor of two sums over all processes; for an optimiser that has
        a part of the weights in plain tensors. Distributed tensors are summed without it.
    """

    def __init__(
        self,
        adamw: torch.optim.Optimizer,
        most: float,
        total: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        self._most = most
        self._total = total
        self._rates: list[float] = []
        self.scale = 1.0
        adamw.register_step_pre_hook(self._clip)
        adamw.register_step_post_hook(self._restore)

    @torch.no_grad()
    def _clip(self, adamw: torch.optim.Optimizer, *_: object) -> None:
        self._rates = [group["lr"] for group in adamw.param_groups]
        squares, count = self._sums(adamw).tolist()
        self.scale = max(1.0, (squares / count) ** 0.5 / self._most) if count else 1.0
        for group in adamw.param_groups:
            group["lr"] = group["lr"] / self.scale

    def _restore(self, adamw: torch.optim.Optimizer, *_: object) -> None:
        for group, rate in zip(adamw.param_groups, self._rates, strict=True):
            group["lr"] = rate

    def _sums(self, adamw: torch.optim.Optimizer) -> torch.Tensor:
        """Return the sum of ``g^2 / v`` and the number of weights, float64, (2,)."""
        sums, count = [], 0
        for group in adamw.param_groups:
            decay, tiny = group["betas"][1], group["eps"] ** 2
            for weights in group["params"]:
                if weights.grad is None:
                    continue
                squares = weights.grad.float().square()
                state = adamw.state[weights]
                if "exp_avg_sq" in state:
                    # The value after the coming update. The bias is 1 - decay^t.
                    moment = (decay * state["exp_avg_sq"]).add_(squares, alpha=1 - decay)
                    moment = moment.div_(1 - decay ** (float(state["step"]) + 1)).clamp_(min=tiny)
                else:
                    moment = squares.clamp(min=tiny)
                sums.append(squares.div_(moment).sum())
                count += weights.numel()
        total = torch.stack(sums).sum() if sums else torch.zeros(())
        total = total.full_tensor() if isinstance(total, DTensor) else total
        both = torch.stack([total.double(), total.new_tensor(count, dtype=torch.float64)])
        return both if self._total is None else self._total(both)
