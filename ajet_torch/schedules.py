"""The learning rate of each training step, with schedules of transformers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import cast

import torch

from ajet_core.protocol.run import AlgorithmConfig

__all__ = ["learning_rate"]


def learning_rate(algorithm: AlgorithmConfig, steps_done: int) -> float:
    """Return the learning rate of the training step after `steps_done` steps.

    It depends on nothing else, so it is the same after a restart. The last step of the warm-up has
    the full rate. A schedule that falls would reach 0 one step after `schedule_steps`.
    """
    step = steps_done + 1
    # Without a warm-up, the first step has the full rate, as the last of a warm-up of one step.
    warmup = max(1, algorithm.warmup_steps)
    if algorithm.schedule_steps is None:
        return algorithm.learning_rate * min(1.0, step / warmup)
    factor = _factor(algorithm.schedule, warmup, algorithm.schedule_steps)
    return algorithm.learning_rate * factor(min(step, algorithm.schedule_steps))


@functools.lru_cache
def _factor(schedule: str, warmup_steps: int, schedule_steps: int) -> Callable[[int], float]:
    """Return the function of transformers that maps a step to a share of the learning rate."""
    # It imports peft, which takes seconds that most runs do not need.
    from transformers import get_scheduler

    unused = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=1.0)
    scheduler = get_scheduler(
        schedule,
        unused,
        num_warmup_steps=warmup_steps,
        num_training_steps=schedule_steps + 1,
    )
    return cast("Callable[[int], float]", scheduler.lr_lambdas[0])
