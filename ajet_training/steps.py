"""Metrics of a training step."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ajet_core.timeline.batch import TrainCall

__all__ = ["advantage_metrics"]


def advantage_metrics(calls: Sequence[TrainCall]) -> dict[str, float]:
    """Return mean and standard deviation over the calls of a batch."""
    advantages = [call.advantage for call in calls]
    count = len(advantages)
    mean = math.fsum(advantages) / count if count else 0.0
    square = math.fsum((a - mean) ** 2 for a in advantages) / count if count else 0.0
    return {"advantage_mean": mean, "advantage_std": math.sqrt(square)}
