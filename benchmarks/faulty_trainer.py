"""A trainer with deliberate faults."""

from __future__ import annotations

import random
from dataclasses import replace

import torch
from ajet_backend_torch.trainer import TorchTrainer
from altered_plugin import FaultySettings

from ajet_core.interfaces import StepReport, WorkerContext
from ajet_core.timeline import TrainBatch, TrainCall


class FaultyTrainer(TorchTrainer):
    """The torch trainer with a wrong learning rate, noisy logprobs, or weights that it loses."""

    def __init__(self, settings: FaultySettings, context: WorkerContext) -> None:
        super().__init__(settings, context)
        self._fault = settings
        self._random = random.Random(settings.from_step)
        self._raised = False
        self._initial: dict[str, torch.Tensor] = {}

    def step(self, batch: TrainBatch) -> StepReport:
        """Train, with the fault from its first step on."""
        fault = self._fault
        if fault.reset and not self._initial:
            parameters = self.policy.module.named_parameters()
            self._initial = {name: weights.detach().clone() for name, weights in parameters}
        if batch.step >= fault.from_step:
            if fault.rate != 1.0 and not self._raised:
                self._raised = True
                optimiser = self.policy.optimiser
                update = optimiser.step

                def faster(learning_rate: float) -> None:
                    update(learning_rate * fault.rate)

                optimiser.step = faster  # type: ignore[method-assign]
            if fault.noise:
                batch = replace(batch, calls=[self._noisy(call) for call in batch.calls])
        report = super().step(batch)
        if batch.step == fault.from_step and fault.sharpen != 1.0:
            # The last norm scales the logits.
            self.policy.module.get_parameter("model.norm.weight").data.mul_(fault.sharpen)
        if batch.step >= fault.from_step and fault.reset:
            for name, weights in self.policy.module.named_parameters():
                weights.data.copy_(self._initial[name])
        return report

    def _noisy(self, call: TrainCall) -> TrainCall:
        noise = self._random.gauss
        return replace(
            call, logprobs=[min(0.0, x + noise(0.0, self._fault.noise)) for x in call.logprobs]
        )
