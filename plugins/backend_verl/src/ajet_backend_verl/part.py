"""What goes back and forth between the trainer and its workers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

SUMS = ("tokens", "logprob", "entropy", "kl", "clipped")
"""What is summed over tokens: their number, their logprobs (nats), entropies, divergences, and those that were clipped."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Orders:
    """How a minibatch is computed.

    :param number: of the minibatch in its step, counted from 0, of `steps`.
    :param step: of the run.
    :param tokens: sampled tokens of the minibatch, all workers' and those of rows that are left out too; as `rows`.
    :param learning_rate: of its optimiser step.
    :param grad_norm_limit: as `VerlTrainerSettings.grad_norm_limit`.
    :param rehearsal: the gradient is not applied.
    """

    step: int
    number: int
    steps: int
    tokens: int
    rows: int
    learning_rate: float
    grad_norm_limit: float | None
    rehearsal: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """A minibatch that was computed; the same on all workers but for `logprobs`.

    :param logprobs: [R, C] of the worker's rows.
    :param loss: of the minibatch, as `grad_norm` and `sums`.
    :param refused: why its gradient was not applied, "" if it was.
    """

    logprobs: Floats
    loss: float
    grad_norm: float
    sums: dict[str, float] = field(default_factory=dict)
    refused: str = ""


class WorkerFailure(Exception):  # noqa: N818
    """What went wrong in a worker.

    :param memory: whether memory was missing.
    :param lost: whether it cannot go on.
    """

    def __init__(self, message: str, memory: bool = False, lost: bool = False) -> None:
        # All of them, or it could not be read in another process.
        super().__init__(message, memory, lost)
        self.message = message
        self.memory = memory
        self.lost = lost
