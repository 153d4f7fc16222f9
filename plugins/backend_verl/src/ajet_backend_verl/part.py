"""Messages between the trainer and its workers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

SUMS = ("tokens", "logprob", "entropy", "kl", "clipped")
"""Names of the sums over tokens: count, logprobs (nats), entropies, divergences, clipped tokens."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Orders:
    """Parameters of the computation of a minibatch.

    :param step: step of the run.
    :param number: index of the minibatch in its step, from 0.
    :param steps: number of minibatches in the step.
    :param tokens: number of sampled tokens in the minibatch, over all workers and including rows
        that are not computed.
    :param rows: number of rows in the minibatch, counted in the same way.
    :param learning_rate: learning rate of its optimiser step.
    :param grad_norm_limit: as `VerlTrainerSettings.grad_norm_limit`.
    :param rehearsal: do not apply the gradient.
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
class MinibatchResult:
    """The result of a minibatch; equal on all workers except for `logprobs`.

    :param logprobs: [R, C] of the worker's rows.
    :param loss: loss of the minibatch; `grad_norm` and `sums` are of the minibatch too.
    :param refused: why its gradient was not applied, "" if it was.
    """

    logprobs: Floats
    loss: float
    grad_norm: float
    sums: dict[str, float] = field(default_factory=dict)
    refused: str = ""


class WorkerFailure(Exception):  # noqa: N818
    """An error in a worker.

    :param memory: whether the worker ran out of memory.
    :param lost: whether the worker cannot continue.
    """

    def __init__(self, message: str, memory: bool = False, lost: bool = False) -> None:
        # Pass all arguments: otherwise the error could not be unpickled in another process.
        super().__init__(message, memory, lost)
        self.message = message
        self.memory = memory
        self.lost = lost
