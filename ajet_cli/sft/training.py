"""Supervised training of examples, by any trainer that trains advantages or best calls.

Each answer has the advantage 1, and each optimiser step trains one batch. A truncated importance
weight with the cap 1 is 1 for tokens whose behaviour logprob is unknown and therefore very low
(`UNKNOWN_LOGPROB`). The gradient is then that of the mean log-likelihood, although the trainer
computes a surrogate.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import random
import shutil
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ajet_cli.lone_trainer import LoneTrainer
from ajet_core.errors import ConfigError, RequestError, UnreadableFileError
from ajet_core.files import read_json, write_whole
from ajet_core.interfaces import (
    AdvantageEstimator,
    ComponentSettings,
    EpisodeRecord,
    Merger,
    StepReport,
)
from ajet_core.protocol import RunConfig
from ajet_core.timeline import Call, TrainBatch, TrainEpisode
from ajet_server.batches.training_data import training_data

Example = Sequence[Call]

FIXED: dict[str, Any] = {
    "importance": "truncated",
    "importance_cap": 1.0,
    "minibatches": 1,
    "epochs": 1,
    "max_update_kl": 0.0,
}
"""Settings of `AlgorithmConfig` with which a step follows the likelihood."""

_STATE = "sft.json"


class EqualAdvantages(AdvantageEstimator[ComponentSettings]):
    """The advantage 1 for each call."""

    def estimate(
        self,
        episodes: Sequence[TrainEpisode],  # noqa: ARG002
        calls: Sequence[Sequence[Call]],
    ) -> list[list[float]]:
        """Return 1 for each call."""
        return [[1.0] * len(own) for own in calls]


@dataclass(frozen=True, slots=True)
class SftStep:
    """The result of one step.

    :param loss: mean negative log-likelihood of the trained tokens before the step, in nats.
    :param tokens: the trained tokens.
    :param held_out_loss: the same of the held-out examples after the step; None if not measured.
    """

    step: int
    steps: int
    epoch: int
    loss: float
    tokens: int
    learning_rate: float | None
    seconds: float
    held_out_loss: float | None = None


@dataclass(frozen=True, slots=True)
class SftPlan:
    """What is trained, and how often.

    :param config: as `sft_config` returns it.
    :param batch_size: examples of a step.
    :param save_every: steps between checkpoints.
    """

    config: RunConfig
    examples: Sequence[Example]
    held_out: Sequence[Example]
    epochs: int
    batch_size: int
    save_every: int

    @property
    def steps_per_epoch(self) -> int:
        """The number of steps of an epoch."""
        return math.ceil(len(self.examples) / self.batch_size)

    @property
    def steps(self) -> int:
        """The number of all steps."""
        return self.epochs * self.steps_per_epoch

    def batch(self, step: int) -> list[Example]:
        """Return the examples of a step, 1-based; each epoch has an order of its own."""
        epoch, number = divmod(step - 1, self.steps_per_epoch)
        order = list(range(len(self.examples)))
        random.Random(f"{self.config.seed}-{epoch}").shuffle(order)  # noqa: S311
        first = number * self.batch_size
        return [self.examples[place] for place in order[first : first + self.batch_size]]

    def fingerprint(self) -> str:
        """Return a hash of everything that decides the result."""
        hashed = hashlib.sha256(self.config.model_dump_json().encode())
        hashed.update(repr((self.epochs, self.batch_size)).encode())
        for example in (*self.examples, *self.held_out):
            for call in example:
                hashed.update(repr((call.prompt_ids, call.sampled_ids)).encode())
        return hashed.hexdigest()


def sft_config(config: RunConfig, honoured: frozenset[str]) -> RunConfig:
    """Return a configuration whose trainer maximises the likelihood of what it gets.

    :param honoured: as `TrainerCapabilities.algorithm_fields`.
    :raises ConfigError: the trainer would clip the gradient of all tokens.
    """
    if "clip_high" in honoured and "importance" not in honoured:
        raise ConfigError(
            f"trainer {config.trainer.name!r} cannot train given answers: it compares tokens with "
            "the probability that they were sampled with (it honours no algorithm.importance)",
            param="trainer.name",
        )
    changes = {name: value for name, value in FIXED.items() if name in honoured}
    algorithm = config.algorithm.model_copy(update=changes)
    return config.model_copy(update={"algorithm": algorithm})


class SftRun:
    """A training, which continues where an earlier one with the same plan was ended.

    :param directory: keeps checkpoints until the model is written.
    """

    def __init__(
        self, plan: SftPlan, merger: Merger, trainer: LoneTrainer, directory: Path
    ) -> None:
        self._plan = plan
        self._merger = merger
        self._trainer = trainer
        self._directory = directory
        self._fingerprint = plan.fingerprint()

    async def steps(self) -> AsyncIterator[SftStep]:
        """Train the steps that are left.

        :raises RequestError: the directory belongs to another plan.
        :raises TrainerError: a step cannot be trained.
        """
        plan = self._plan
        done = self._begun()
        checkpoint = self._checkpoint(done) if done else None
        await self._trainer.begin(checkpoint, done)
        for step in range(done + 1, plan.steps + 1):
            batch = await asyncio.to_thread(self._data, f"step-{step}", step, plan.batch(step))
            report = await self._trainer.step(batch, publish=False)
            is_last = step % plan.steps_per_epoch == 0
            held_out = await self._held_out_loss(step) if is_last and plan.held_out else None
            yield SftStep(
                step,
                plan.steps,
                1 + (step - 1) // plan.steps_per_epoch,
                loss_of(report),
                report.tokens_trained,
                report.metrics.get("learning_rate"),
                report.seconds,
                held_out,
            )
            if step % plan.save_every == 0 or step == plan.steps:
                await self._save(step)

    async def _held_out_loss(self, step: int) -> float:
        """Return the mean loss of a held-out token."""
        plan, total, tokens = self._plan, 0.0, 0
        for first in range(0, len(plan.held_out), plan.batch_size):
            part = plan.held_out[first : first + plan.batch_size]
            batch = await asyncio.to_thread(self._data, f"held-out-{step}", step, part)
            report = await self._trainer.rehearse(batch)
            total += loss_of(report) * report.tokens_trained
            tokens += report.tokens_trained
        return total / tokens if tokens else math.nan

    def _data(self, name: str, step: int, examples: Sequence[Example]) -> TrainBatch:
        records = [_record(example[0].episode_id) for example in examples]
        data = training_data(
            name,
            # As of the first step, before which no tokens are too old.
            1,
            records,
            {record.episode_id: calls for record, calls in zip(records, examples, strict=True)},
            # Advantages are not balanced: none is negative.
            config=self._plan.config.model_copy(
                update={
                    "algorithm": self._plan.config.algorithm.model_copy(
                        update={"importance": "ratio", "importance_cap": 2.0}
                    )
                }
            ),
            merger=self._merger,
            estimator=EqualAdvantages(ComponentSettings(), self._plan.config.algorithm),
            trainer=self._trainer.info,
        )
        return replace(data.batch, step=step)

    def _begun(self) -> int:
        """Return the number of steps of an earlier training whose weights are saved."""
        path = self._directory / _STATE
        try:
            state = read_json(path)
        except FileNotFoundError:
            return 0
        except UnreadableFileError as error:
            raise RequestError(f"{error.message}: remove {self._directory}") from error
        if state.get("fingerprint") != self._fingerprint:
            raise RequestError(
                f"{self._directory} is of a training with other data or settings, which was ended "
                "before its model was written: remove it, or repeat the command as it was"
            )
        return int(state["step"])

    def _checkpoint(self, step: int) -> Path:
        return self._directory / f"step-{step:06d}"

    async def _save(self, step: int) -> None:
        checkpoint = self._checkpoint(step)
        shutil.rmtree(checkpoint, ignore_errors=True)
        await self._trainer.save(checkpoint)
        state = {"fingerprint": self._fingerprint, "step": step}
        write_whole(self._directory / _STATE, json.dumps(state).encode())
        for other in self._directory.glob("step-*"):
            if other != checkpoint:
                shutil.rmtree(other, ignore_errors=True)


def loss_of(report: StepReport) -> float:
    """Return the mean negative log-likelihood of a token before a step, in nats.

    NaN if the trainer reports no logprobs.
    """
    logprobs = [value for row in report.logprobs for value in row]
    return -math.fsum(logprobs) / len(logprobs) if logprobs else math.nan


def without_long(examples: Sequence[Example], most: int | None) -> list[Example]:
    """Return the examples without those of which a call has more than `most` tokens."""
    if most is None:
        return list(examples)
    return [one for one in examples if all(call.length <= most for call in one)]


def as_row(step: SftStep) -> dict[str, Any]:
    """Return a step as JSON, with null for what is not finite."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in asdict(step).items()
    }


def _record(episode_id: str) -> EpisodeRecord:
    # Each is a task of its own: there is no baseline to share.
    return EpisodeRecord(
        episode_id, "", episode_id, episode_id, "train", "", "", 0, 0.0, 0.0, "ended", 1.0
    )
