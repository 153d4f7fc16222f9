"""The trainers ``trl``, ``trl_sft`` and ``trl_distillation``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import nn
from typing_extensions import TypeVar

from ajet_backend_trl.attempts import BatchStep
from ajet_backend_trl.hooks import WEIGHT_CHANNELS
from ajet_backend_trl.peers import Peers
from ajet_backend_trl.policy import TrlPolicy
from ajet_backend_trl.settings import (
    TrlDistillationSettings,
    TrlSettings,
    TrlSftSettings,
    TrlTrainerSettings,
)
from ajet_backend_trl.sft import best_of
from ajet_backend_trl.zero import check_installed
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
from ajet_torch.guard import check_finite
from ajet_torch.memory import headline, is_out_of_memory
from ajet_torch.models import resolve_device
from ajet_torch.publishing import Publisher
from ajet_training.steps import advantage_metrics

TrlSettingsT_co = TypeVar(
    "TrlSettingsT_co", bound=TrlSettings, default=TrlTrainerSettings, covariant=True
)


class TrlTrainer(Trainer[TrlSettingsT_co]):
    """Policy-gradient training by TRL's `GRPOTrainer`, of all parameters or LoRA adapters.

    TRL computes losses, gradients and clipping, on batches with rollouts, rewards and advantages
    from the server (`ajet_backend_trl.grpo`). Refused steps, checkpoints and exports are as in the
    trainer ``torch``.

    :param is_peer: whether it runs in a peer process of `ajet_backend_trl.peers`, and has no peers
        itself.
    """

    name = "trl"

    def __init__(
        self, settings: TrlSettingsT_co, context: WorkerContext, *, is_peer: bool = False
    ) -> None:
        super().__init__(settings, context)
        self._model: ModelConfig | None = None
        self._algorithm = AlgorithmConfig()
        self._policy: TrlPolicy | None = None
        self._is_peer = is_peer
        self._peers: Peers | None = None
        self._progress = Progress(steps=0, policy_version=0, seed=context.seed)
        self._publisher = Publisher(self.name, WEIGHT_CHANNELS, context)

    def start(self, model: ModelConfig, algorithm: AlgorithmConfig) -> TrainerInfo:
        """Load `model`, add the configured LoRA adapters, and create TRL's trainer.

        :raises ModelDirectoryError: the directory cannot be used.
        :raises ConfigError: a setting does not fit the model, the machine or TRL.
        :raises TrainerError: model and optimiser do not fit into memory.
        """
        if self._policy is not None:
            raise TrainerError(f"the trainer {self.name!r} has already been started")
        if self.settings.distribution == "deepspeed":
            check_installed()
        if self.settings.processes > 1 and not self._is_peer:
            self._peers = Peers(
                self.settings.processes,
                partial(type(self), self.settings, is_peer=True),
                self.context,
                cuda=resolve_device(self.settings.device).type == "cuda",
            )
        with self._peers_do("start", model, algorithm):
            self._policy = self._loaded(model, algorithm)
        self._model = model
        self._algorithm = algorithm
        return self._policy.info()

    def _loaded(self, model: ModelConfig, algorithm: AlgorithmConfig) -> TrlPolicy:
        if self._peers is not None:
            self._peers.meet()
        try:
            return TrlPolicy(model, algorithm, self.settings, self.context)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise TrainerError(
                f"{model.path} and its optimiser do not fit into memory ({headline(error)}); set "
                "model.lora or train a smaller model",
                param="model.path",
            ) from error

    @contextmanager
    def _peers_do(self, method: str, *arguments: object) -> Iterator[None]:
        if self._peers is None:
            yield
            return
        try:
            with self._peers.running(method, *arguments):
                yield
        except WeightsLostError:
            if self._policy is not None:
                # Processes may have different weights until all load a checkpoint.
                self._policy.optimiser.torn = True
            raise

    @property
    def policy(self) -> TrlPolicy:
        """The trained model.

        :raises TrainerError: the trainer is not running.
        """
        return self._started()[0]

    def step(self, batch: TrainBatch) -> StepReport:
        """Train on one batch.

        A batch in which no token has anything to learn from changes no weights and reports the
        metric ``no_signal`` 1.0. Metrics besides the common ones: ``advantage_mean``,
        ``advantage_std`` (over calls), ``ratio_mean``, ``ratio_max`` (over tokens, of policy over
        behaviour probability, or over old probability with truncated importance weights).
        ``entropy``, ``kl`` and ``clip_fraction`` are TRL's measurements.

        :raises StepRefusedError: a number in the batch, its loss, a gradient or a weight is not
            finite, or the gradient norm exceeds `TrlTrainerSettings.grad_norm_limit`; nothing is
            changed.
        :raises WeightsLostError: an update failed half-way, or the weights were damaged before.
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
        policy, _ = self._started()
        started = time.perf_counter()
        # A linear sequence belongs to one episode.
        check_batch(batch, policy.vocab_size, list(range(len(batch.episodes))), trees=False)
        check_finite(batch)
        limit = self.settings.grad_norm_limit
        with self._peers_do("rehearse" if rehearsal else "step", batch):
            chosen = self._trained(batch)
            applied = BatchStep(
                policy, self._algorithm, limit, chosen, self._progress, rehearsal
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

    def _trained(self, batch: TrainBatch) -> TrainBatch:
        """Return the part of a batch to train on."""
        return batch

    def publish(self, channel: str, policy_version: int) -> WeightUpdate:
        """Publish with `ajet_torch.publishing.Publisher`, with merged adapters.

        :raises TrainerError: the channel does not exist, or publishing failed.
        """
        policy, model = self._started()
        self._publisher.check(channel)
        with self._as_written(policy) as module:
            update = self._publisher.publish(module, model, channel, policy_version)
        with self._peers_do("follow", policy_version):
            self.follow(policy_version)
        return update

    def follow(self, policy_version: int) -> None:
        """Set the version of the present weights."""
        self._progress = replace(self._progress, policy_version=policy_version)

    def save(self, directory: Path) -> None:
        """Write trained weights (with LoRA, only the adapters), optimiser and progress.

        :raises TrainerError: the directory cannot be written.
        """
        policy, _ = self._started()
        with self._peers_do("gather") if policy.is_divided else nullcontext():
            tensors = policy.checkpointed()
        save_checkpoint(directory, tensors, self._progress)

    def load(self, directory: Path) -> None:
        """Continue from a checkpoint, with bitwise the same results as without the interruption.

        :raises WeightsLostError: only some processes could load it.
        :raises TrainerError: it is incomplete, damaged or of another model; nothing is changed.
        """
        with self._peers_do("load", directory):
            self._progress = load_checkpoint(directory, self._running()[0].loadable())

    def export(self, directory: Path) -> None:
        """Write a Hugging Face directory, with merged adapters and the source's tokenizer files.

        :raises TrainerError: the directory cannot be written.
        """
        policy, model = self._started()
        with self._as_written(policy) as module:
            write_model(module, model, directory)

    @contextmanager
    def _as_written(self, policy: TrlPolicy) -> Iterator[nn.Module]:
        """Yield the model to write; a divided model is assembled."""
        if not policy.is_divided:
            with policy.as_loaded() as module:
                yield module
            return
        with self._peers_do("assemble"):
            assembled = policy.assembled()
        assert assembled is not None, "what is kept is there"
        yield assembled

    def assemble(self) -> None:
        """Take part in assembling the model; for peers."""
        self._running()[0].assembled(keep=False)

    def gather(self) -> None:
        """Take part in assembling a checkpoint; for peers."""
        self._running()[0].checkpointed(keep=False)

    def close(self) -> None:
        """Free all memory and stop the peers."""
        self._publisher.close()
        if self._policy is not None:
            self._policy.trainer.loop.close()
        self._policy = None
        if self._peers is not None:
            self._peers.close()
            self._peers = None

    def _started(self) -> tuple[TrlPolicy, ModelConfig]:
        policy, model = self._running()
        if policy.optimiser.torn:
            raise WeightsLostError(
                f"an update of the trainer {self.name!r} failed half-way, or in some of its "
                "processes, so its weights are lost; load a checkpoint"
            )
        return policy, model

    def _running(self) -> tuple[TrlPolicy, ModelConfig]:
        if self._policy is None or self._model is None:
            raise TrainerError(
                f"the trainer {self.name!r} is not running: it was not started, or is closed"
            )
        return self._policy, self._model


class TrlSftTrainer(TrlTrainer[TrlSftSettings]):
    """Rejection sampling: TRL's `SFTTrainer` on the best calls of each batch.

    The best calls are those with a positive advantage: better than the baseline of their group.
    """

    name = "trl_sft"

    def _trained(self, batch: TrainBatch) -> TrainBatch:
        return best_of(batch, self.settings.min_reward)


class TrlDistillationTrainer(TrlTrainer[TrlDistillationSettings]):
    """On-policy distillation: TRL's `DistillationTrainer` on the student's own calls.

    Every sampled token is trained, whatever the reward of its episode. Metrics besides the common
    ones: ``loss`` is the mean divergence of a token, ``teacher_logprob`` the mean logprob of the
    sampled tokens under the teacher, and ``teacher_kl`` the difference of policy and teacher
    logprobs, an estimate of the reverse KL divergence.
    """

    name = "trl_distillation"
