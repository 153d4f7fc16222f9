"""Mutations of trainers: the scripted one, and where they need weights, the one of torch."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from ajet_core.errors import StepRefusedError, TrainerError
from ajet_core.interfaces import StepReport
from ajet_core.timeline import TrainBatch
from ajet_testing import scripted_trainer
from ajet_testing.scripted_trainer import ScriptedTrainer
from tests.mutants.planting import Mutants, around, put

TORCH = "plugins/backend_torch/tests"
scripted = Mutants("trainer", "tests/embedded/test_scripted_trainer_suite.py::TestScriptedTrainer")
torch = Mutants("trainer", f"{TORCH}/test_trainer_suite.py::TestTorchTrainer", torch=True)
loss = Mutants("trainer", f"{TORCH}/test_loss_suite.py::TestTorchLoss", torch=True)
ALL = (scripted, torch, loss)


def reports(trainer: Any, change: Any) -> None:
    """Change the reports of a trainer's steps."""
    around(trainer, "step", lambda original, self, batch: change(original(self, batch), batch))


@scripted
def a_refused_step_counts() -> None:
    def step(original: Any, self: Any, batch: TrainBatch) -> StepReport:
        try:
            return original(self, batch)
        except StepRefusedError:
            self._steps += 1
            raise

    around(ScriptedTrainer, "step", step)


@scripted
def a_refused_step_is_half_applied() -> None:
    def step(original: Any, self: Any, batch: TrainBatch) -> StepReport:
        try:
            return original(self, batch)
        except StepRefusedError:
            self._digest = self._digest[::-1]
            raise

    around(ScriptedTrainer, "step", step)


@scripted
def numbers_that_are_not_finite_are_trained() -> None:
    put(scripted_trainer, "math", _Finite())


class _Finite:
    def __getattr__(self, name: str) -> Any:
        return (lambda _: True) if name == "isfinite" else getattr(math, name)


@scripted
def advantages_are_not_looked_at() -> None:
    def refuse(original: Any, self: Any, batch: TrainBatch, **named: Any) -> None:
        calls = [replace(call, advantage=0.0) for call in batch.calls]
        original(self, replace(batch, calls=calls), **named)

    around(ScriptedTrainer, "_refuse", refuse)


@scripted
def infinity_is_taken_for_a_number() -> None:
    class Nan(_Finite):
        def __getattr__(self, name: str) -> Any:
            return (lambda v: not math.isnan(v)) if name == "isfinite" else getattr(math, name)

    put(scripted_trainer, "math", Nan())


@scripted
def a_refused_batch_is_any_error() -> None:
    def step(original: Any, self: Any, batch: TrainBatch) -> StepReport:
        try:
            return original(self, batch)
        except StepRefusedError as error:
            raise TrainerError(error.message) from error

    around(ScriptedTrainer, "step", step)


@scripted
def a_refused_batch_is_reported_as_trained() -> None:
    def step(original: Any, self: Any, batch: TrainBatch) -> StepReport:
        try:
            return original(self, batch)
        except StepRefusedError:
            return StepReport(batch.step)

    around(ScriptedTrainer, "step", step)


@scripted
def a_step_trains_nothing() -> None:
    def step(original: Any, self: Any, batch: TrainBatch) -> StepReport:
        before = self._digest, self._steps
        report = original(self, batch)
        self._digest, self._steps = before
        return report

    around(ScriptedTrainer, "step", step)


@scripted
def the_report_has_the_number_of_the_trainer() -> None:
    reports(ScriptedTrainer, lambda report, _: replace(report, step=report.step - 1))


@scripted
def a_metric_is_not_finite() -> None:
    reports(
        ScriptedTrainer,
        lambda report, _: replace(report, metrics={**report.metrics, "kl": math.nan}),
    )


@scripted
def all_tokens_count_as_trained() -> None:
    reports(
        ScriptedTrainer,
        lambda report, _: replace(report, tokens_trained=report.tokens_processed),
    )


@scripted
def logprobs_are_those_of_whole_sequences() -> None:
    reports(
        ScriptedTrainer,
        lambda report, batch: replace(
            report, logprobs=[[-1.0] * tree.tokens for tree in batch.trees]
        ),
    )


@scripted
def the_number_of_steps_is_not_saved() -> None:
    def load(original: Any, self: Any, directory: Path) -> None:
        original(self, directory)
        self._steps = 0

    around(ScriptedTrainer, "load", load)


@scripted
def loading_does_nothing() -> None:
    def load(original: Any, self: Any, directory: Path) -> None:
        before = self._steps, self._digest
        original(self, directory)
        self._steps, self._digest = before

    around(ScriptedTrainer, "load", load)


@scripted
def a_damaged_checkpoint_is_a_new_beginning() -> None:
    def load(original: Any, self: Any, directory: Path) -> None:
        try:
            original(self, directory)
        except TrainerError:
            self._steps = 0

    around(ScriptedTrainer, "load", load)


@scripted
def a_damaged_checkpoint_raises_anything() -> None:
    def load(original: Any, self: Any, directory: Path) -> None:
        try:
            original(self, directory)
        except TrainerError as error:
            raise (error.__cause__ or error) from error

    around(ScriptedTrainer, "load", load)


@scripted
def a_damaged_checkpoint_is_loaded_in_part() -> None:
    def load(original: Any, self: Any, directory: Path) -> None:
        self._steps = -1
        original(self, directory)

    around(ScriptedTrainer, "load", load)


@scripted
def saving_changes_what_is_trained() -> None:
    def save(original: Any, self: Any, directory: Path) -> None:
        original(self, directory)
        self._digest = self._digest[::-1]

    around(ScriptedTrainer, "save", save)


@scripted
def a_rehearsal_counts() -> None:
    def rehearse(original: Any, self: Any, batch: TrainBatch) -> StepReport:
        self._steps += 1
        return original(self, batch)

    around(ScriptedTrainer, "rehearse", rehearse)


@scripted
def a_rehearsal_trains() -> None:
    def rehearse(original: Any, self: Any, batch: TrainBatch) -> StepReport:
        return self.step(batch)

    around(ScriptedTrainer, "rehearse", rehearse)


@scripted
def a_rehearsal_refuses_nothing() -> None:
    def refuse(original: Any, self: Any, batch: TrainBatch, *, rehearsal: bool = False) -> None:
        if not rehearsal:
            original(self, batch)

    around(ScriptedTrainer, "_refuse", refuse)


@scripted
def a_rehearsal_reports_no_tokens() -> None:
    def rehearse(original: Any, self: Any, batch: TrainBatch) -> StepReport:
        return replace(original(self, batch), tokens_trained=0)

    around(ScriptedTrainer, "rehearse", rehearse)


@scripted
def every_channel_is_accepted() -> None:
    def publish(original: Any, self: Any, channel: str, version: int) -> Any:
        known = channel if channel in scripted_trainer.WEIGHT_CHANNELS else "in_process"
        return original(self, known, version)

    around(ScriptedTrainer, "publish", publish)


@scripted
def an_export_has_no_configuration() -> None:
    def export(original: Any, self: Any, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)

    around(ScriptedTrainer, "export", export)


@scripted
def training_depends_on_chance() -> None:
    import random

    def step(original: Any, self: Any, batch: TrainBatch) -> StepReport:
        report = original(self, batch)
        self._digest += str(random.random())
        return report

    around(ScriptedTrainer, "step", step)


@scripted
def tensors_of_a_step_are_kept() -> None:
    class Tensor:
        pass

    def step(original: Any, self: Any, batch: TrainBatch) -> StepReport:
        self.__dict__.setdefault("kept", []).append(Tensor())
        return original(self, batch)

    around(ScriptedTrainer, "step", step)


@scripted
def the_batch_is_changed() -> None:
    def step(original: Any, self: Any, batch: TrainBatch) -> StepReport:
        report = original(self, batch)
        for call in batch.calls:
            call.logprobs[:] = [0.0] * len(call.logprobs)
        return report

    around(ScriptedTrainer, "step", step)


@torch
def the_optimiser_is_not_saved() -> None:
    from ajet_backend_torch.trainer import TorchTrainer

    def load(original: Any, self: Any, directory: Path) -> None:
        original(self, directory)
        for tensor in self.policy.optimiser.state_tensors().values():
            tensor.zero_()

    around(TorchTrainer, "load", load)


@torch
def a_refused_step_keeps_its_first_updates() -> None:
    from ajet_torch.optimiser import MasterAdamW

    put(MasterAdamW, "restore", lambda self, snapshot: None)


@torch
def what_is_published_is_what_was_before() -> None:
    from ajet_torch import publishing

    kept: dict[int, Any] = {}

    def without(original: Any, module: Any, model: Any) -> Any:
        import copy

        plain = original(module, model)
        last, kept[0] = kept.get(0), copy.deepcopy(plain)
        if last is None:
            import torch

            last = copy.deepcopy(plain)
            with torch.no_grad():
                for parameter in last.parameters():
                    parameter.mul_(0.99)
        return last

    around(publishing, "without_adapters", without)


@torch
def what_is_published_is_of_half_precision() -> None:
    from ajet_torch import publishing

    def without(original: Any, module: Any, model: Any) -> Any:
        import copy

        return copy.deepcopy(original(module, model)).bfloat16()

    around(publishing, "without_adapters", without)


@torch
def the_graph_of_a_step_is_kept() -> None:
    from ajet_backend_torch.update import BatchUpdate

    kept: list[Any] = []

    def loss_(original: Any, self: Any, *arguments: Any, **named: Any) -> Any:
        kept.append(original(self, *arguments, **named))
        return kept[-1]

    around(BatchUpdate, "_loss", loss_)


@torch
def dropout_depends_on_chance() -> None:
    from ajet_backend_torch.policy import TrainedPolicy

    def training(original: Any, self: Any, seed: int) -> Any:
        import secrets

        return original(self, secrets.randbits(40))

    around(TrainedPolicy, "training", training)


@torch
def importance_is_not_capped() -> None:
    from ajet_backend_torch import update

    def weighed(original: Any, surrogate: Any, old: Any, behaviour: Any, cap: float) -> Any:
        return original(surrogate, old, behaviour, 1e6)

    around(update, "weighed", weighed)


@loss
def gradients_are_accumulated_twice() -> None:
    from ajet_backend_torch.update import BatchUpdate

    def loss_(original: Any, self: Any, *arguments: Any, **named: Any) -> Any:
        return 2 * original(self, *arguments, **named)

    around(BatchUpdate, "_loss", loss_)


@loss
def advantages_have_the_wrong_sign() -> None:
    from ajet_backend_torch import update

    def surrogate(original: Any, logprobs: Any, old: Any, advantage: Any, *rest: Any) -> Any:
        return original(logprobs, old, -advantage, *rest)

    around(update, "clipped_surrogate", surrogate)


@loss
def tokens_are_one_too_late() -> None:
    from ajet_backend_torch import logits

    def score(original: Any, values: Any, targets: Any, *rest: Any, **named: Any) -> Any:
        return original(values, targets.roll(1), *rest, **named)

    around(logits, "score_tokens", score)


@loss
def temperatures_are_not_applied() -> None:
    from ajet_backend_torch import logits

    def score(
        original: Any, values: Any, targets: Any, temperature: Any, *rest: Any, **n: Any
    ) -> Any:
        return original(values, targets, temperature * 0 + 1, *rest, **n)

    around(logits, "score_tokens", score)


@loss
def what_tokens_were_sampled_from_is_forgotten() -> None:
    from ajet_backend_torch import logits

    def score(original: Any, *arguments: Any, **named: Any) -> Any:
        return original(*arguments, **{**named, "restrictions": None})

    around(logits, "score_tokens", score)
