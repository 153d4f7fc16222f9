"""The trainer ``torch``."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from ajet_backend_torch.attempts import train_on
from ajet_backend_torch.exact import check_exact
from ajet_backend_torch.hooks import OFFERED_CHANNELS
from ajet_backend_torch.policy import TrainedPolicy
from ajet_backend_torch.settings import TorchTrainerSettings
from ajet_core.errors import TrainerError, WeightsLostError
from ajet_core.interfaces import (
    StepReport,
    Trainer,
    TrainerInfo,
    WeightUpdate,
    WorkerContext,
)
from ajet_core.protocol import AlgorithmConfig, ModelConfig
from ajet_core.timeline import TrainBatch
from ajet_torch.checkpoint import Progress, load_checkpoint, save_checkpoint
from ajet_torch.checks import check_batch
from ajet_torch.export import write_model
from ajet_torch.guard import Limits, check_finite
from ajet_torch.memory import free_memory, headline, is_out_of_memory
from ajet_torch.models import SHARED_MODEL_KEY, SharedModel, resolve_device, set_threads
from ajet_torch.publishing import Publisher
from ajet_training.minibatches import dealing_units
from ajet_training.steps import advantage_metrics


class TorchTrainer(Trainer[TorchTrainerSettings]):
    """Policy-gradient training of a Hugging Face causal LM, of all parameters or LoRA adapters.

    All of `AlgorithmConfig` is supported; the batch already contains the effect of advantage and
    discount. `ajet_backend_torch.update` describes the rest. Trees are computed segment by segment,
    each token once (`ajet_backend_torch.forest`), if the model's cache allows it.

    A refused or failed step changes nothing, see `ajet_backend_torch.attempts`. With several
    optimiser steps in a batch, this takes host memory for three float32 copies of the trainable
    weights.
    """

    def __init__(self, settings: TorchTrainerSettings, context: WorkerContext) -> None:
        super().__init__(settings, context)
        self._model: ModelConfig | None = None
        self._algorithm = AlgorithmConfig()
        self._policy: TrainedPolicy | None = None
        self._progress = Progress(steps=0, policy_version=0, seed=context.seed)
        self._publisher = Publisher("torch", OFFERED_CHANNELS, context)

    def start(self, model: ModelConfig, algorithm: AlgorithmConfig) -> TrainerInfo:
        """Load `model`, add the configured LoRA adapters, and create the optimiser.

        :raises ModelDirectoryError: the directory cannot be used.
        :raises ConfigError: a setting does not fit the model or the machine.
        :raises TrainerError: model and optimiser do not fit into memory.
        """
        if self._policy is not None:
            raise TrainerError("the trainer 'torch' has already been started")
        device = resolve_device(self.settings.device)
        if self.context.exact:
            check_exact(device, self.settings.threads)
        set_threads(self.settings.threads, device)
        reason = ""
        try:
            self._policy = TrainedPolicy(model, algorithm, self.settings, device, self.context)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            reason = headline(error)
        if self._policy is None:
            free_memory(device)
            raise TrainerError(
                f"{model.path} and its optimiser do not fit into the memory of {device} "
                f"({reason}); set model.lora, model.dtype to bfloat16, "
                "trainer.settings.master_dtype to 'model', or train a smaller model",
                param="model.path",
            )
        self._model = model
        self._algorithm = algorithm
        return self._policy.info()

    @property
    def policy(self) -> TrainedPolicy:
        """The trained model.

        :raises TrainerError: the trainer is not running.
        """
        return self._started()[0]

    def step(self, batch: TrainBatch) -> StepReport:
        """Train on one batch.

        A batch in which no token has anything to learn from changes no weights and reports the
        metric ``no_signal`` 1.0. Metrics besides the common ones: ``advantage_mean``,
        ``advantage_std`` (over calls), ``ratio_mean``, ``ratio_max`` (over tokens, of the clipped
        ratio: policy over behaviour probability, or over old probability with truncated importance
        weights), and in an exact run ``weights_digest``: the first 48 bits of the SHA-256 of the
        trained weights after the step.

        :raises StepRefusedError: a number in the batch, its loss, a gradient or a weight is not
            finite, or exceeds `TorchTrainerSettings.loss_limit` or ``grad_norm_limit``; nothing is
            changed.
        :raises WeightsLostError: an update failed half-way, or the weights were damaged before.
        :raises TrainerError: the batch is malformed, or does not fit into memory; nothing is
            changed.
        """
        report = self._computed(batch, rehearsal=False)
        if self.context.exact:
            digest = _weights_digest(self.policy.optimiser.weight_tensors())
            report = replace(report, metrics={**report.metrics, "weights_digest": digest})
        self._progress = replace(self._progress, steps=self._progress.steps + 1)
        return report

    def rehearse(self, batch: TrainBatch) -> StepReport:
        """Compute the passes of `step` without applying updates."""
        return self._computed(batch, rehearsal=True)

    def _computed(self, batch: TrainBatch, *, rehearsal: bool) -> StepReport:
        policy, _ = self._started()
        started = time.perf_counter()
        units = dealing_units(batch.episodes, self._algorithm.minibatches)
        check_batch(
            batch, policy.vocab_size, units, trees=policy.trees, max_tokens=policy.max_tokens
        )
        check_finite(batch)
        limits = Limits(self.settings.loss_limit, self.settings.grad_norm_limit)
        applied = train_on(
            policy, self._algorithm, limits, batch, self._progress, rehearsal=rehearsal
        )
        update = applied.update
        return StepReport(
            step=batch.step,
            metrics={
                **advantage_metrics(batch.calls),
                **applied.metrics,
                "token_budget": float(policy.token_budget),
                "oom_retries": float(applied.retries),
            },
            tokens_trained=update.tokens_trained,
            tokens_processed=update.totals.processed,
            sequences=update.trees,
            seconds=time.perf_counter() - started,
            logprobs=applied.logprobs,
        )

    def publish(self, channel: str, policy_version: int) -> WeightUpdate:
        """Make the present weights available.

        ``in_process`` shares the model itself under the key ``torch.model`` of
        `WorkerContext.shared`; `Publisher` describes the other channels.

        :raises TrainerError: the channel does not exist, or publishing failed.
        """
        policy, model = self._started()
        if channel == "in_process":
            self.context.shared[SHARED_MODEL_KEY] = SharedModel(
                path=model.path, module=policy.module, policy_version=policy_version
            )
            update = WeightUpdate(channel, policy_version, SHARED_MODEL_KEY)
        else:
            update = self._publisher.publish(policy.module, model, channel, policy_version)
        self._progress = replace(self._progress, policy_version=policy_version)
        return update

    def save(self, directory: Path) -> None:
        """Write trained weights (with LoRA, only the adapters), optimiser and progress.

        :raises TrainerError: the directory cannot be written.
        """
        policy, _ = self._started()
        save_checkpoint(directory, policy.optimiser, self._progress)

    def load(self, directory: Path) -> None:
        """Continue from a checkpoint, with bitwise the same results as without the interruption.

        :raises TrainerError: it is incomplete, damaged or of another model; nothing is changed.
        """
        policy, _ = self._running()
        self._progress = load_checkpoint(directory, policy.optimiser)

    def export(self, directory: Path) -> None:
        """Write a Hugging Face directory, with merged adapters and the source's tokenizer files.

        :raises TrainerError: the directory cannot be written.
        """
        policy, model = self._started()
        write_model(policy.module, model, directory)

    def close(self) -> None:
        """Free all memory; an engine that shares the model keeps it."""
        self._publisher.close()
        self._policy = None

    def _started(self) -> tuple[TrainedPolicy, ModelConfig]:
        policy, model = self._running()
        if policy.optimiser.torn:
            raise WeightsLostError(
                "an update of the trainer 'torch' failed half-way, so its weights are lost; "
                "load a checkpoint"
            )
        return policy, model

    def _running(self) -> tuple[TrainedPolicy, ModelConfig]:
        if self._policy is None or self._model is None:
            raise TrainerError(
                "the trainer 'torch' is not running: it was not started, or is closed"
            )
        return self._policy, self._model


def _weights_digest(weights: Mapping[str, torch.Tensor]) -> float:
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(weights[name].contiguous().view(torch.uint8).numpy().data)
    # A float represents 48 bits exactly.
    return float(int.from_bytes(digest.digest()[:6], "big"))
