"""The learning rate of a training step, and metrics of its advantages."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ajet_core.protocol.run import AlgorithmConfig
from ajet_core.timeline.batch import TrainCall

__all__ = ["advantage_metrics", "learning_rate"]


def learning_rate(algorithm: AlgorithmConfig, steps_done: int) -> float:
    """Return the learning rate of the step after `steps_done` steps."""
    if not algorithm.warmup_steps:
        return algorithm.learning_rate
    return algorithm.learning_rate * min(1.0, (steps_done + 1) / algorithm.warmup_steps)


def advantage_metrics(calls: Sequence[TrainCall]) -> dict[str, float]:
    """Return mean and standard deviation over the calls of a batch."""
    advantages = [call.advantage for call in calls]
    count = len(advantages)
    mean = math.fsum(advantages) / count if count else 0.0
    square = math.fsum((a - mean) ** 2 for a in advantages) / count if count else 0.0
    return {"advantage_mean": mean, "advantage_std": math.sqrt(square)}
