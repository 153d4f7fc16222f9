"""The trainer: batches in, weights out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path

from ajet_core.errors import TrainerError
from ajet_core.interfaces.context import ComponentSettings, WorkerContext
from ajet_core.interfaces.engine import WeightUpdate
from ajet_core.protocol.run import AlgorithmConfig, ModelConfig
from ajet_core.timeline import CostModel, TrainBatch


@dataclass(frozen=True, slots=True)
class TrainerCapabilities:
    """What a trainer can do.

    :param weight_channels: names of the weight channels it offers, best first.
    :param algorithm_fields: names of the `AlgorithmConfig` fields it honours; any other field that
        differs from its default is refused before the trainer starts.
    :param trees: whether it computes trees of several segments; if not, every `TrainTree` it is given is
        a linear sequence, and `TrainBatch.sequences` holds them with masks.
    :param reloads: whether ``load`` can put it back to a checkpoint at any time, not only after ``start``: then
        a server that was killed and started again goes on with the worker that it had.
    :param rehearses: whether it has `Trainer.rehearse`.
    """

    weight_channels: tuple[str, ...]
    algorithm_fields: frozenset[str]
    lora: bool = False
    trees: bool = False
    reloads: bool = False
    rehearses: bool = False


@dataclass(frozen=True, slots=True)
class TrainerInfo:
    """Facts known once a trainer has started.

    :param trees: as `TrainerCapabilities.trees`, for this model: some cannot go on from the keys and values
        of other tokens.
    :param token_budget: tokens it computes at once, padding included; None if it does not say.
    :param costs: how long its passes take, as it measured; None if it does not say.
    """

    parameters: int
    trainable_parameters: int
    device: str
    trees: bool = False
    token_budget: int | None = None
    costs: CostModel | None = None


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step did.

    :param metrics: named numbers. Common names: ``loss``, ``entropy`` (nats), ``kl`` (to the reference,
        nats; only if it is computed), ``clip_fraction``, ``grad_norm`` (before clipping),
        ``logprob_gap`` (largest absolute difference of behaviour and trainer logprob before the step,
        for tokens of the current policy version; missing if there are none) and ``logprob_gap_mean`` (the
        mean of the same), ``importance_mean``,
        ``importance_max`` (over trained tokens, of old over behaviour probability, not truncated) and
        ``importance_capped`` (share of tokens whose weight was truncated; the three only with
        `AlgorithmConfig.importance` ``truncated``), ``learning_rate``,
        ``token_budget`` (the one the step was computed with) and ``oom_retries`` (how often this step ran out of
        memory).
    :param tokens_trained: tokens with a loss.
    :param tokens_processed: tokens that went through the forward pass of the policy, padding left out; once more if
        their old logprobs took a pass of their own.
    :param seconds: wall seconds of the step.
    :param logprobs: [len(batch.calls)], each [T] the trainer's logprobs of the call's tokens at the sampling
        temperature, as first computed in this step; an empty list for a call that was not computed. Empty
        altogether if the trainer does not report them.
    """

    step: int
    metrics: dict[str, float] = field(default_factory=dict)
    tokens_trained: int = 0
    tokens_processed: int = 0
    sequences: int = 0
    seconds: float = 0.0
    logprobs: list[list[float]] = field(default_factory=list)


class Trainer(ABC):
    """A trainer. All methods are called from one thread, one after the other.

    Failures raise `ajet_core.errors.TrainerError`.
    """

    def __init__(self, settings: ComponentSettings, context: WorkerContext) -> None:
        self.settings = settings
        self.context = context

    @abstractmethod
    def start(self, model: ModelConfig, algorithm: AlgorithmConfig) -> TrainerInfo:
        """Load `model` and make the optimiser; called once."""

    @abstractmethod
    def step(self, batch: TrainBatch) -> StepReport:
        """Train on one batch.

        Weights served by an engine do not change before `publish`, except through the channel
        ``in_process``, for which the engine is paused meanwhile.

        A trainer that runs out of memory tries again with a smaller token budget by itself, and reports the
        budget it got through with.

        :raises StepRefusedError: the batch would have damaged the weights: a loss, gradient or weight is not
            finite, or an update is beyond all measure. Weights, optimiser, schedule, random numbers and the
            number of steps are as before, in the same tensors, so that the next batch is trained as if this
            one had never been there. The message says what was measured and what may have caused it.
        :raises WeightsLostError: weights or optimiser are neither as before nor as after the step. Until something
            is loaded the trainer refuses to train, publish and save with this error too; the run goes on from
            the last checkpoint in another worker.
        :raises TrainerError: the batch cannot be computed: it is malformed, too long, or there is too little memory for
            the smallest budget; the message says what to set. Weights and optimiser are as before. It is treated like a
            batch that is refused.
        """

    def rehearse(self, batch: TrainBatch) -> StepReport:
        """Compute all forward and backward passes of `step`, and apply none of them. Needs the capability `rehearses`.

        Weights, optimiser, schedule, random numbers and the number of steps are bit by bit as before, and the next
        `step` does what it would have done.

        :raises StepRefusedError: `step` would refuse the batch before its first update.
        :raises TrainerError: as `step`.
        """
        raise TrainerError(f"{type(self).__name__} cannot rehearse batch {batch.batch_id}")

    @abstractmethod
    def publish(self, channel: str, policy_version: int) -> WeightUpdate:
        """Make the present weights available on `channel` as `policy_version`.

        On ``in_process`` this is also called before the engine starts, which then takes them over.
        """

    @abstractmethod
    def save(self, directory: Path) -> None:
        """Write all that `load` needs to go on bit by bit: weights, optimiser, RNG, step."""

    @abstractmethod
    def load(self, directory: Path) -> None:
        """Go on from what `save` wrote."""

    @abstractmethod
    def export(self, directory: Path) -> None:
        """Write the model as a Hugging Face directory (adapters merged in)."""

    @abstractmethod
    def close(self) -> None:
        """Free everything."""
