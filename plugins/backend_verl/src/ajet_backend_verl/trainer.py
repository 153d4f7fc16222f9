"""The trainer ``verl``."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ajet_backend_verl.hooks import WEIGHT_CHANNELS
from ajet_backend_verl.part import WorkerFailure
from ajet_backend_verl.settings import VerlTrainerSettings, check_algorithm
from ajet_backend_verl.surroundings import prepare
from ajet_core.errors import ConfigError, TrainerError, WeightsLostError
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
from ajet_torch.guard import check_finite
from ajet_torch.models import resolve_device
from ajet_torch.publishing import Publisher
from ajet_training.steps import advantage_metrics

if TYPE_CHECKING:
    from ajet_backend_verl.policy import VerlPolicy


class VerlTrainer(Trainer[VerlTrainerSettings]):
    """Policy-gradient training by verl's workers on Ray, of all parameters or LoRA adapters.

    verl shards the model (FSDP2), computes losses and gradients, and steps the optimiser, on
    batches with rollouts and rewards from the server. Refused steps, checkpoints and exports are as
    in the trainer ``torch``; they contain whole weights, whatever the number of workers.
    """

    def __init__(self, settings: VerlTrainerSettings, context: WorkerContext) -> None:
        super().__init__(settings, context)
        self._model: ModelConfig | None = None
        self._algorithm = AlgorithmConfig()
        self._policy: VerlPolicy | None = None
        self._progress = Progress(steps=0, policy_version=0, seed=context.seed)
        self._publisher = Publisher("verl", WEIGHT_CHANNELS, context)

    def start(self, model: ModelConfig, algorithm: AlgorithmConfig) -> TrainerInfo:
        """Start Ray or connect to the cluster, and make verl's workers load `model`.

        :raises ModelDirectoryError: the directory cannot be used.
        :raises ConfigError: a setting does not fit the model, the machine or verl.
        :raises TrainerError: the cluster is too small, or model and optimiser do not fit into
            memory.
        """
        if self._policy is not None:
            raise TrainerError("the trainer 'verl' has already been started")
        check_algorithm(self.settings, algorithm)
        device = resolve_device(self.settings.device)
        self._check(model, on_cpu=device.type == "cpu")
        prepare(device)
        # Imported here, because verl reads its environment on import.
        from ajet_backend_verl.policy import VerlPolicy

        try:
            self._policy = VerlPolicy(model, algorithm, self.settings, self.context, device)
        except WorkerFailure as failure:
            what = "do not fit into memory" if failure.memory else "cannot be loaded by verl"
            raise TrainerError(
                f"{model.path} and its optimiser {what} ({failure.message}){_remedy(failure)}",
                param="model.path",
            ) from failure
        self._model = model
        self._algorithm = algorithm
        return self._policy.info()

    def _check(self, model: ModelConfig, *, on_cpu: bool) -> None:
        if model.lora is not None and model.lora.dropout > 0:
            raise ConfigError(
                "verl's adapters have no dropout: set model.lora.dropout to 0, or use the trainer "
                "'trl' or 'torch'",
                param="model.lora.dropout",
            )
        if on_cpu and self.settings.offload:
            raise ConfigError(
                "trainer.settings.offload moves weights from a GPU to the host, but the "
                "trainer computes on the CPU",
                param="trainer.settings.offload",
            )

    @property
    def policy(self) -> VerlPolicy:
        """The trained model.

        :raises TrainerError: the trainer is not running.
        """
        return self._started()[0]

    def step(self, batch: TrainBatch) -> StepReport:
        """Train on one batch.

        A batch in which no token has anything to learn from changes no weights and reports the
        metric ``no_signal`` 1.0. Metrics besides the common ones: ``advantage_mean``,
        ``advantage_std`` (over calls, of the batch's own advantages), ``ratio_mean``, ``ratio_max``
        (over tokens, of policy over behaviour probability, or over old probability with a
        correction), and the metrics of verl's ``rollout_correction`` if it is used.

        :raises StepRefusedError: a number in the batch, its loss, a gradient or a weight is not
            finite, or the gradient norm exceeds `VerlTrainerSettings.grad_norm_limit`; nothing is
            changed.
        :raises WeightsLostError: a worker or its node is gone, an update failed half-way, or the
            weights were damaged before.
        :raises TrainerError: the batch is malformed, or does not fit into memory; nothing is
            changed.
        """
        report = self._computed(batch, rehearsal=False)
        self._progress = replace(self._progress, steps=self._progress.steps + 1)
        return report

    def rehearse(self, batch: TrainBatch) -> StepReport:
        """Compute the passes of `step` without applying updates."""
        return self._computed(batch, rehearsal=True)

    def _computed(self, batch: TrainBatch, *, rehearsal: bool) -> StepReport:
        from ajet_backend_verl.attempts import BatchStep

        policy, _ = self._started()
        started = time.perf_counter()
        # A linear sequence belongs to one episode.
        check_batch(batch, policy.vocab_size, list(range(len(batch.episodes))), trees=False)
        check_finite(batch)
        applied = BatchStep(
            policy, self._algorithm, self.settings, batch, self._progress, rehearsal
        ).apply()
        return StepReport(
            step=batch.step,
            metrics={
                **advantage_metrics(batch.calls),
                **applied.metrics,
                "token_budget": float(policy.token_budget),
                "oom_retries": float(applied.retries),
            },
            tokens_trained=applied.tokens_trained,
            tokens_processed=applied.tokens_processed,
            sequences=applied.sequences,
            seconds=time.perf_counter() - started,
            logprobs=applied.logprobs,
        )

    def publish(self, channel: str, policy_version: int) -> WeightUpdate:
        """Publish with `ajet_torch.publishing.Publisher`, with merged adapters.

        :raises TrainerError: the channel does not exist, or publishing failed.
        """
        policy, model = self._started()
        self._publisher.check(channel)
        module = policy.as_loaded()
        update = self._publisher.publish(module, _merged(model), channel, policy_version)
        self._progress = replace(self._progress, policy_version=policy_version)
        return update

    def save(self, directory: Path) -> None:
        """Write trained weights (with LoRA, only the adapters), optimiser and progress.

        :raises TrainerError: the directory cannot be written.
        """
        save_checkpoint(directory, self._started()[0], self._progress)

    def load(self, directory: Path) -> None:
        """Continue from a checkpoint.

        With the same number of workers, results are bitwise the same as without the interruption.

        :raises TrainerError: it is incomplete, damaged or of another model; nothing is changed.
        """
        self._progress = load_checkpoint(directory, self._running()[0])

    def export(self, directory: Path) -> None:
        """Write a Hugging Face directory, with merged adapters and the source's tokenizer files.

        :raises TrainerError: the directory cannot be written.
        """
        policy, model = self._started()
        write_model(policy.as_loaded(), _merged(model), directory)

    def close(self) -> None:
        """Stop the workers, and Ray if it was started here."""
        self._publisher.close()
        if self._policy is not None:
            self._policy.close()
        self._policy = None

    def _started(self) -> tuple[VerlPolicy, ModelConfig]:
        policy, model = self._running()
        if policy.lost:
            raise WeightsLostError(
                f"the weights of the trainer 'verl' are lost: {policy.lost}; load a checkpoint"
            )
        return policy, model

    def _running(self) -> tuple[VerlPolicy, ModelConfig]:
        if self._policy is None or self._model is None:
            raise TrainerError(
                "the trainer 'verl' is not running: it was not started, or is closed"
            )
        return self._policy, self._model


def _merged(model: ModelConfig) -> ModelConfig:
    """Return the configuration without adapters, which are merged when written."""
    return model.model_copy(update={"lora": None})


def _remedy(failure: WorkerFailure) -> str:
    if failure.memory:
        return "; set model.lora, or more workers"
    # Also of its modules, such as 'trl.experimental.ppo'.
    if "from 'trl" in failure.message:
        return (
            "; verl imports a class that this version of TRL does not have: remove TRL from the "
            f"environment of {sys.executable} (-m pip uninstall trl), or create one without it "
            "(ajet env create verl --force)"
        )
    return ""
