"""The trainer: batches in, weights out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic

from ajet_core.errors import TrainerError
from ajet_core.interfaces.context import SettingsT_co, WorkerContext
from ajet_core.interfaces.engine import WeightUpdate
from ajet_core.protocol.run import AlgorithmConfig, ModelConfig
from ajet_core.timeline import CostModel, TrainBatch


@dataclass(frozen=True, slots=True)
class TrainerCapabilities:
    """Features of a trainer.

    :param weight_channels: names of the offered weight channels, best first.
    :param algorithm_fields: names of the supported `AlgorithmConfig` fields; any other field that
        differs from its default is refused before the trainer starts.
    :param trees: whether the trainer computes trees of several segments. If not, every `TrainTree`
        it receives is a linear sequence, and `TrainBatch.sequences` has them with masks.
    :param reloads: whether ``load`` can restore a checkpoint at any time, not only after ``start``.
        If so, a server that was killed and restarted continues with its old worker.
    :param rehearses: whether the trainer implements `Trainer.rehearse`.
    :param exact: whether the trainer supports `WorkerContext.exact`.
    :param sampled_from: whether the trainer trains `TrainCall.sampled_from`.
    """

    weight_channels: tuple[str, ...]
    algorithm_fields: frozenset[str]
    lora: bool = False
    trees: bool = False
    reloads: bool = False
    rehearses: bool = False
    exact: bool = False
    sampled_from: bool = False


@dataclass(frozen=True, slots=True)
class TrainerInfo:
    """Properties of a started trainer.

    :param trees: as `TrainerCapabilities.trees`, for this model: not all models can do it.
    :param token_budget: maximum number of tokens in one pass, with padding; None if unknown.
    :param costs: the measured durations of its passes; None if unknown.
    """

    parameters: int
    trainable_parameters: int
    device: str
    trees: bool = False
    token_budget: int | None = None
    costs: CostModel | None = None


@dataclass(frozen=True, slots=True)
class StepReport:
    """The result of one step.

    :param metrics: numbers by name, such as ``loss``; ``docs/metrics.md`` lists the common names
        with units and meanings. Use these names, because findings about training depend on them.
    :param tokens_trained: tokens with a loss.
    :param tokens_processed: tokens in forward passes of the policy, without padding; they count
        twice if their old logprobs needed a separate pass.
    :param seconds: wall seconds of the step.
    :param logprobs: [len(batch.calls)], each [T] the trainer's logprobs of the call's tokens, to be
        compared with `TrainCall.behaviour`, as first computed in this step; an empty list for a
        call that was not computed. Completely empty if the trainer does not report them.
    """

    step: int
    metrics: dict[str, float] = field(default_factory=dict)
    tokens_trained: int = 0
    tokens_processed: int = 0
    sequences: int = 0
    seconds: float = 0.0
    logprobs: list[list[float]] = field(default_factory=list)


class Trainer(Generic[SettingsT_co], ABC):
    """A trainer. All methods are called from one thread, one at a time.

    Failures raise `ajet_core.errors.TrainerError`.
    """

    def __init__(self, settings: SettingsT_co, context: WorkerContext) -> None:
        self.settings = settings
        self.context = context

    @abstractmethod
    def start(self, model: ModelConfig, algorithm: AlgorithmConfig) -> TrainerInfo:
        """Load `model` and create the optimiser; called once."""

    @abstractmethod
    def step(self, batch: TrainBatch) -> StepReport:
        """Train on one batch.

        Weights served by an engine do not change before `publish`, except with the channel
        ``in_process``, for which the engine is paused during the step.

        Without enough memory, it retries with a smaller token budget, and reports the last.

        :raises StepRefusedError: the batch would have damaged the weights: a loss, gradient or
            weight is not finite, or an update is far too large. Weights, optimiser, schedule, RNG
            state and the number of steps are unchanged, in the same tensors, so that the next batch
            is trained as if this one had not existed. The message has values and causes.
        :raises WeightsLostError: weights or optimiser are neither those before nor those after the
            step. Until a checkpoint is loaded, the trainer refuses to train, publish and save with
            this error. The run continues from the last checkpoint in another worker.
        :raises TrainerError: the batch cannot be computed: it is malformed, too long, or there is
            too little memory for the smallest budget; the message says what to set. Weights and
            optimiser are unchanged. It is treated like a refused batch.
        """

    def rehearse(self, batch: TrainBatch) -> StepReport:
        """Compute all forward and backward passes of `step` without applying any update.

        Needs the capability `rehearses`. Weights, optimiser, schedule, RNG state and the number of
        steps stay bitwise unchanged, so that the result of the next `step` does not change.

        :raises StepRefusedError: `step` would refuse the batch before its first update.
        :raises TrainerError: as for `step`.
        """
        raise TrainerError(f"{type(self).__name__} cannot rehearse batch {batch.batch_id}")

    @abstractmethod
    def publish(self, channel: str, policy_version: int) -> WeightUpdate:
        """Make the current weights available on `channel` as `policy_version`.

        With ``in_process`` also called before the engine starts, which then uses these tensors.
        """

    @abstractmethod
    def save(self, directory: Path) -> None:
        """Write all that `load` needs to continue bitwise: weights, optimiser, RNG state, step."""

    @abstractmethod
    def load(self, directory: Path) -> None:
        """Restore a state written by `save`."""

    @abstractmethod
    def export(self, directory: Path) -> None:
        """Write the model as a Hugging Face directory, with adapters merged in."""

    @abstractmethod
    def close(self) -> None:
        """Free all resources."""
