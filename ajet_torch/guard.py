"""Checks that refuse batches, losses, gradients and weights that would ruin the training."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from ajet_core.errors import StepRefusedError
from ajet_core.timeline.batch import TrainBatch

__all__ = [
    "FAR_AWAY",
    "NO_LOGPROB",
    "OVERFLOW",
    "TOO_FAST",
    "Accumulated",
    "Limits",
    "StepGuard",
    "check_finite",
]

OVERFLOW = "an overflow in the model's dtype, or rewards that are too large"
FAR_AWAY = "logprobs that another model or temperature sampled"
NO_LOGPROB = "a logprob of the policy is not finite"
TOO_FAST = "a learning rate that is too high, or too many minibatches and epochs"


@dataclass(frozen=True, slots=True)
class Accumulated:
    """Sums over a minibatch whose gradients were accumulated.

    :param loss: float64 scalar on the device; likewise `logprob_sum`, over all computed tokens.
    :param expected_loss: the sum over tokens of the weight times the factors of ratio, divergence
        and entropy: the loss is at most about this while the policy is close to the sampling one.
    """

    loss: torch.Tensor
    logprob_sum: torch.Tensor
    expected_loss: float


@dataclass(frozen=True, slots=True)
class Limits:
    """``loss_limit`` and ``grad_norm_limit`` of `TorchTrainerSettings`; None means no limit."""

    loss: float | None
    grad_norm: float | None


def check_finite(batch: TrainBatch) -> None:
    """Refuse a batch with numbers that are not finite in float32.

    :raises StepRefusedError: names the number and its call.
    """
    for call in batch.calls:
        # Numbers too large for float32 become infinite here, as they would later.
        with np.errstate(over="ignore"):
            numbers = np.array([call.advantage, *call.logprobs, *call.behaviour], np.float32)
        wrong = np.flatnonzero(~np.isfinite(numbers))
        if not wrong.size:
            continue
        first = int(wrong[0])
        what = (
            f"logprob {(first - 1) % len(call.logprobs)} is {numbers[first]}"
            if first
            else f"advantage is {call.advantage}"
        )
        episode = batch.episodes[call.episode]
        raise StepRefusedError(
            f"step {batch.step} was refused before anything was computed: the {what}, which "
            f"is not finite, in call {call.call_id} (episode {episode.episode_id}, reward "
            f"{episode.reward:g}). Check for overflowing rewards, or for an engine that "
            "recorded damaged logprobs"
        )


class StepGuard:
    """Checks the optimiser steps of one training step.

    :param steps: number of planned optimiser steps.
    """

    def __init__(self, step: int, steps: int, limits: Limits) -> None:
        self._step = step
        self._steps = steps
        self._limits = limits

    def check_scores(self, logprob_sum: torch.Tensor) -> None:
        """Refuse to start if a logprob of the policy is not finite.

        Synchronises with the device once.

        :raises StepRefusedError: a logprob is not finite.
        """
        if not math.isfinite(float(logprob_sum)):
            raise self._error("before its first update", NO_LOGPROB, OVERFLOW)

    def check(self, number: int, accumulated: Accumulated, norm: torch.Tensor) -> float:
        """Refuse to apply the gradients of minibatch `number` (from 0).

        Synchronises with the device once.

        :return: the gradient norm.
        :raises StepRefusedError: a limit is exceeded; the message has the measured value.
        """
        loss, logprob_sum, grad_norm = torch.stack(
            [accumulated.loss, accumulated.logprob_sum, norm.to(accumulated.loss.dtype)]
        ).tolist()
        if not math.isfinite(loss) or not math.isfinite(grad_norm):
            what = f"its loss {loss:.3g} and gradient norm {grad_norm:.3g} are not finite"
            raise self._refused(number, what, OVERFLOW)
        if not math.isfinite(logprob_sum):
            raise self._refused(number, NO_LOGPROB, OVERFLOW)
        limit = self._limits.loss
        if limit is not None and abs(loss) > limit * accumulated.expected_loss:
            what = (
                f"its loss {loss:.3g} is more than {limit:g} times "
                f"(trainer.settings.loss_limit) the {accumulated.expected_loss:.3g} that is "
                "possible for a policy close to the one that sampled"
            )
            raise self._refused(number, what, FAR_AWAY)
        limit = self._limits.grad_norm
        if limit is not None and grad_norm > limit:
            what = (
                f"its gradient norm {grad_norm:.3g} exceeds "
                f"trainer.settings.grad_norm_limit {limit:g}"
            )
            raise self._refused(number, what, f"rewards on a wrong scale, or {FAR_AWAY}")
        return float(grad_norm)

    def weights_refused(self) -> StepRefusedError:
        """Return the error for weights that are not finite after the step."""
        return self._refused(self._steps - 1, "weights are not finite after its update", TOO_FAST)

    def _refused(self, number: int, what: str, cause: str) -> StepRefusedError:
        before = ""
        if number:
            before = f", after {number} optimiser step{'s' if number > 1 else ''}"
            cause = TOO_FAST
        return self._error(f"minibatch {number + 1} of {self._steps}{before}", what, cause)

    def _error(self, when: str, what: str, cause: str) -> StepRefusedError:
        return StepRefusedError(
            f"step {self._step} was refused: {when}: {what}. Likely cause: {cause}. Weights "
            "and optimiser are as before the step"
        )
