"""What trainers of TRL have in common when they are fed with batches from outside.

TRL's loop asks for its inputs with `_prepare_inputs`; the trainers here answer with the next micro-batch of the batch
that was handed to `StepLoop.run`. Everything after it is TRL's. The other overrides measure, and refuse what would
damage the weights.
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
from ajet_core.protocol.run import AlgorithmConfig
from ajet_torch.optimiser import MasterAdamW

Optimiser = MasterAdamW | zero.ZeroAdamW

NEVER = 10**9
"""Optimiser steps after which the loop would end."""


@dataclass(slots=True)
class Work:
    """A batch on its way through the loop.

    :param seed: of dropout.
    :param learning_rate: of all its optimiser steps.
    :param importance_cap: None compares with behaviour logprobs; otherwise with those before the step, times truncated
        importance weights.
    :param max_update_kl: as `AlgorithmConfig.max_update_kl`; 0 for no limit.
    :ivar done: micro-batches that were computed.
    :ivar old: by row, logprobs before the step, as `reference` those of the reference model; where they are needed.
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
    """How a model is cut up for several processes; by default it is not.

    :param fsdp: how FSDP shards.
    :param zero: configuration of DeepSpeed.
    """

    fsdp: FsdpSettings | None = None
    zero: Mapping[str, Any] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether each process has all of it."""
        return self.fsdp is None and self.zero is None


WHOLE = Division()


class Stepped:
    """Mixed into a trainer of TRL, before it.

    :ivar loop: takes the batches.
    :cvar measures: means that it reports beside the common ones, of `ajet_backend_trl.tally.SUMS`.
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
        """To be called before the trainer is made."""
        self._division = division
        self.loop: StepLoop[Work] = StepLoop(self._train_from, self._fits)
        self._work: Work | None = None
        self._part: MicroBatch | None = None
        self._minibatch = Minibatch(0, [], [])
        self._scored: torch.Tensor | None = None
        self._shorten: Callable[[float], None] | None = None
        self._inverse_temperature: torch.Tensor | None = None

    def _divide_logits_of(self, model: nn.Module) -> None:
        """Have `_temperatures_of` hold for a model."""
        plain = model.get_base_model() if isinstance(model, PeftModel) else model
        backbone: nn.Module = plain.base_model  # type: ignore[assignment]
        backbone.register_forward_hook(self._divide_by_temperature)

    def _send_telemetry(self) -> None:
        """Nobody is told what is trained here."""

    # Several processes.

    def create_accelerator_and_postprocess(self) -> None:
        """As transformers does it; then FSDP and DeepSpeed are on for CPUs too."""
        super().create_accelerator_and_postprocess()  # type: ignore[misc]
        division = self._division
        if division.fsdp is not None:
            sharding.adopt_plugin(self.accelerator, self.args.fsdp_plugin_args, division.fsdp)
            self.is_fsdp_enabled = True
        if division.zero is not None:
            zero.adopt_plugin(self.accelerator, division.zero)
            self.is_deepspeed_enabled = True

    def divide(self, module: nn.Module, algorithm: AlgorithmConfig) -> Optimiser:
        """Cut up the model, if it is to be, and make its optimiser.

        :param module: `model` without what peft puts around it.
        """
        found: Optimiser
        if self._division.zero is not None:
            found = zero.ZeroAdamW(module, self.model, self.accelerator, algorithm)
            self.model_wrapped, self.optimizer = found.engine, found.prepared
        elif self._division.fsdp is not None:
            self.model = self.model_wrapped = sharding.shard(self.accelerator, self.model)
            found = sharding.ShardedAdamW(module, algorithm, self.accelerator.device)
            # It is where its shards are.
            self.optimizer = self.accelerator.prepare_optimizer(found.adamw, device_placement=False)
        else:
            trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
            found = MasterAdamW(trained, algorithm, float32=False)
            self.optimizer = found.adamw
        if isinstance(found, MasterAdamW):
            self._shorten = found.shorten
        return found

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        if self._division.is_whole:
            return super()._prepare_for_training(*args, **kwargs)  # type: ignore[misc]
        # The loop begins anew now and then, and would have the parts cut up once more.
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
        # With both the same, `num_items_in_batch` means the tokens of one optimiser step.
        self.args.steps_per_generation = work.plan.accumulation
        if self.model_wrapped is self.model:
            # Or accelerate would put mixed precision around the model once more.
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
        """The next micro-batch; waits for the next batch after the last one."""
        work = self._work
        if work is None or work.done == len(work.plan.minibatches) * work.plan.accumulation:
            self._work = None
            work = self.loop.take()
            self._work = work
            torch.manual_seed(work.seed)
            self._before(work)
        if self._division.zero is not None:
            # DeepSpeed steps within the backward pass.
            self._set_learning_rate(work)
        minibatch, place = divmod(work.done, work.plan.accumulation)
        self._minibatch = work.plan.minibatches[minibatch]
        self._part = self._micro_batch(work.plan, minibatch, place)
        work.done += 1
        return self._part

    def _before(self, work: Work) -> None:
        """What is computed before the first optimiser step of a batch."""

    def _present(self) -> tuple[Work, MicroBatch]:
        """What is computed now."""
        assert self._work is not None, "the loop computes nothing that it was not given"
        assert self._part is not None, "the loop computes nothing that it was not given"
        return self._work, self._part

    def _micro_batch(self, plan: Plan, minibatch: int, place: int) -> MicroBatch:
        found = plan.minibatches[minibatch]
        shares = found.passes[self.accelerator.process_index][place]
        return micro_batch(plan.rows, shares, found.sizes[place], self.accelerator.device)

    # Measuring.

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """Called once before every optimiser step: the last place to keep it from being applied."""
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)  # type: ignore[misc]
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        work, _ = self._present()
        if work.tally.close_minibatch(torch.as_tensor(norm), self._mean_over_processes):
            self._set_learning_rate(work)
        else:
            # AdamW leaves alone what has no gradient.
            self.optimizer.zero_grad(set_to_none=True)
        return norm

    def _set_learning_rate(self, work: Work) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = work.learning_rate

    def _mean_over_processes(self, value: float) -> float:
        found = torch.tensor(value, dtype=torch.float64, device=self.accelerator.device)
        return float(self.accelerator.reduce(found, reduction="mean"))

    # Temperatures: TRL has one for all, calls have one each.

    @contextmanager
    def _temperatures_of(self, part: MicroBatch) -> Iterator[None]:
        self._inverse_temperature = part.inverse_temperature
        try:
            yield
        finally:
            self._inverse_temperature = None

    def _divide_by_temperature(self, _module: object, _inputs: object, output: Any) -> Any:
        """Logits are linear in the last hidden states, so these are divided instead."""
        if self._inverse_temperature is not None:
            hidden = output.last_hidden_state
            output.last_hidden_state = hidden * self._inverse_temperature[..., None].to(
                hidden.dtype
            )
        return output


def ticks() -> IterableDataset:
    """The loop wants something to iterate over; what it yields is not looked at."""
    return IterableDataset.from_generator(_endless)


def _endless() -> Iterator[dict[str, str]]:
    while True:
        yield {"prompt": ""}


def has_linear_head(model: nn.Module) -> bool:
    """Whether dividing the last hidden states divides the logits."""
    config: Any = model.config
    capped = getattr(config.get_text_config(), "final_logit_softcapping", None)
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    return capped is None and getattr(head, "bias", None) is None
