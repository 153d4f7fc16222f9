"""The common part of TRL trainers with external batches.

TRL's loop requests inputs with `_prepare_inputs`; the trainers here return the next micro-batch of
the batch that was passed to `StepLoop.run`. Everything after this is TRL's code. The other
overrides take measurements, and refuse updates that would damage the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from datasets import IterableDataset
from peft import PeftModel
from torch import nn
from torch.distributed.tensor import DTensor

from ajet_backend_trl import sharding, zero
from ajet_backend_trl.loop import StepLoop
from ajet_backend_trl.plan import Minibatch, Plan
from ajet_backend_trl.settings import FsdpSettings
from ajet_backend_trl.tally import Tally
from ajet_backend_trl.tensors import MicroBatch, micro_batch
from ajet_core.protocol import AlgorithmConfig
from ajet_torch.optimiser import MasterAdamW

Optimiser = MasterAdamW | zero.ZeroAdamW

NEVER = 10**9
"""Number of optimiser steps after which the loop would end."""


@dataclass(slots=True)
class Work:
    """A batch and its state in the loop.

    :param seed: seed of dropout.
    :param learning_rate: learning rate of all its optimiser steps.
    :param importance_cap: None compares with behaviour logprobs; otherwise the comparison is with
        logprobs before the step, times truncated importance weights.
    :param max_update_kl: as `AlgorithmConfig.max_update_kl`; 0 for no limit.
    :ivar done: number of computed micro-batches.
    :ivar old: by row, logprobs before the step, if they are needed.
    :ivar reference: by row, logprobs under the reference model, if they are needed.
    """

    plan: Plan
    tally: Tally
    seed: int
    learning_rate: float
    importance_cap: float | None
    max_update_kl: float = 0.0
    done: int = 0
    old: dict[int, torch.Tensor] = field(default_factory=dict)
    reference: dict[int, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Division:
    """Division of a model among several processes; none by default.

    :param fsdp: options of FSDP.
    :param zero: configuration of DeepSpeed.
    """

    fsdp: FsdpSettings | None = None
    zero: Mapping[str, Any] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether each process has the whole model."""
        return self.fsdp is None and self.zero is None


WHOLE = Division()


class SteppedMixin:
    """Mixin for a TRL trainer; put it before the trainer in the bases.

    :ivar loop: receives the batches.
    :cvar measures: means to report besides the common ones, from `ajet_backend_trl.tally.SUMS`.
    """

    measures: ClassVar[tuple[str, ...]] = ()

    args: Any
    accelerator: Any
    model: Any
    model_wrapped: Any
    optimizer: Any
    is_deepspeed_enabled: bool
    train: Any

    def _begin(self, division: Division) -> None:
        """Initialise the state; call this before the trainer's ``__init__``."""
        self._division = division
        self.loop: StepLoop[Work] = StepLoop(self._train_from, self._fits)
        self._work: Work | None = None
        self._part: MicroBatch | None = None
        self._minibatch = Minibatch(0, [], [])
        self._scored: torch.Tensor | None = None
        self._shorten: Callable[[float], None] | None = None
        self._inverse_temperature: torch.Tensor | None = None

    def _divide_logits_of(self, model: nn.Module) -> None:
        """Make `_temperatures_of` apply to a model."""
        plain = model.get_base_model() if isinstance(model, PeftModel) else model
        backbone: nn.Module = plain.base_model  # type: ignore[assignment]
        backbone.register_forward_hook(self._divide_by_temperature)

    def _send_telemetry(self) -> None:
        """Send no telemetry."""

    # Several processes.

    def create_accelerator_and_postprocess(self) -> None:
        """Call transformers' method, then enable FSDP and DeepSpeed on CPUs too."""
        super().create_accelerator_and_postprocess()  # type: ignore[misc]
        division = self._division
        if division.fsdp is not None:
            sharding.adopt_plugin(self.accelerator, self.args.fsdp_plugin_args, division.fsdp)
            self.is_fsdp_enabled = True
        if division.zero is not None:
            zero.adopt_plugin(self.accelerator, division.zero)
            self.is_deepspeed_enabled = True

    def divide(self, module: nn.Module, algorithm: AlgorithmConfig) -> Optimiser:
        """Divide the model if configured, and create its optimiser.

        :param module: `model` without the wrapper of peft.
        """
        optimiser: Optimiser
        if self._division.zero is not None:
            optimiser = zero.ZeroAdamW(module, self.model, self.accelerator, algorithm)
            self.model_wrapped, self.optimizer = optimiser.engine, optimiser.prepared
        elif self._division.fsdp is not None:
            self.model = self.model_wrapped = sharding.shard(self.accelerator, self.model)
            optimiser = sharding.ShardedAdamW(module, algorithm, self.accelerator.device)
            # The optimiser is already on the device of its shards.
            self.optimizer = self.accelerator.prepare_optimizer(
                optimiser.adamw, device_placement=False
            )
        else:
            trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
            optimiser = MasterAdamW(trained, algorithm, float32=False)
            self.optimizer = optimiser.adamw
        if isinstance(optimiser, MasterAdamW):
            self._shorten = optimiser.shorten
        return optimiser

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        if self._division.is_whole:
            return super()._prepare_for_training(*args, **kwargs)  # type: ignore[misc]
        # The loop restarts now and then, and would divide the parts again.
        enabled, self.is_deepspeed_enabled = self.is_deepspeed_enabled, False
        try:
            if self._division.zero is not None:
                zero.attach(self.accelerator, self.model_wrapped)
            with sharding.as_it_is(self.accelerator):
                return super()._prepare_for_training(*args, **kwargs)  # type: ignore[misc]
        finally:
            self.is_deepspeed_enabled = enabled

    # The loop.

    def _train_from(self, work: Work) -> None:
        self.args.gradient_accumulation_steps = work.plan.accumulation
        # If both are equal, `num_items_in_batch` is the number of tokens of one optimiser step.
        self.args.steps_per_generation = work.plan.accumulation
        if self.model_wrapped is self.model:
            # Otherwise accelerate would wrap the model in mixed precision again.
            plain = self.model.__dict__.pop("_original_forward", None)
            if plain is not None:
                self.model.forward = plain
        if self._division.zero is not None:
            zero.detach(self.accelerator)
        self._work = None
        self.train()

    def _fits(self, work: Work) -> bool:
        return bool(self.args.gradient_accumulation_steps == work.plan.accumulation)

    def _next(self) -> MicroBatch:
        """Return the next micro-batch; after the last one, wait for the next batch."""
        work = self._work
        if work is None or work.done == len(work.plan.minibatches) * work.plan.accumulation:
            self._work = None
            work = self.loop.take()
            self._work = work
            torch.manual_seed(work.seed)
            self._before(work)
        if self._division.zero is not None:
            # DeepSpeed takes the optimiser step within the backward pass.
            self._set_learning_rate(work)
        minibatch, place = divmod(work.done, work.plan.accumulation)
        self._minibatch = work.plan.minibatches[minibatch]
        self._part = self._micro_batch(work.plan, minibatch, place)
        work.done += 1
        return self._part

    def _before(self, work: Work) -> None:
        """Compute what is needed before the first optimiser step of a batch."""

    def _present(self) -> tuple[Work, MicroBatch]:
        """Return the current batch and micro-batch."""
        assert self._work is not None, "the loop computes nothing that it was not given"
        assert self._part is not None, "the loop computes nothing that it was not given"
        return self._work, self._part

    def _micro_batch(self, plan: Plan, minibatch: int, place: int) -> MicroBatch:
        dealt = plan.minibatches[minibatch]
        shares = dealt.passes[self.accelerator.process_index][place]
        return micro_batch(plan.rows, shares, dealt.sizes[place], self.accelerator.device)

    # Measuring.

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """Check a minibatch; transformers calls this once, before each optimiser step."""
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)  # type: ignore[misc]
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        work, _ = self._present()
        if work.tally.close_minibatch(torch.as_tensor(norm), self._mean_over_processes):
            self._set_learning_rate(work)
        else:
            # AdamW skips parameters without gradients.
            self.optimizer.zero_grad(set_to_none=True)
        return norm

    def _set_learning_rate(self, work: Work) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = work.learning_rate

    def _mean_over_processes(self, value: float) -> float:
        tensor = torch.tensor(value, dtype=torch.float64, device=self.accelerator.device)
        return float(self.accelerator.reduce(tensor, reduction="mean"))

    # Temperatures: TRL has one for all tokens, here each call has its own.

    @contextmanager
    def _temperatures_of(self, part: MicroBatch) -> Iterator[None]:
        self._inverse_temperature = part.inverse_temperature
        try:
            yield
        finally:
            self._inverse_temperature = None

    def _divide_by_temperature(self, _module: object, _inputs: object, output: Any) -> Any:
        """Divide the last hidden states instead of the logits, which are linear in them."""
        if self._inverse_temperature is not None:
            hidden = output.last_hidden_state
            output.last_hidden_state = hidden * self._inverse_temperature[..., None].to(
                hidden.dtype
            )
        return output


def ticks() -> IterableDataset:
    """Return a dataset for the loop to iterate over; its items are not used."""
    return IterableDataset.from_generator(_endless)


def _endless() -> Iterator[dict[str, str]]:
    while True:
        yield {"prompt": ""}


def has_linear_head(model: nn.Module) -> bool:
    """Return whether dividing the last hidden states divides the logits."""
    config: Any = model.config
    capped = getattr(config.get_text_config(), "final_logit_softcapping", None)
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    return capped is None and getattr(head, "bias", None) is None
