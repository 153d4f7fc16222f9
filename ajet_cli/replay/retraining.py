"""Train the steps of a recorded run again: as they were, or with changed settings."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

from ajet_cli.changed_config import changed_config
from ajet_cli.lone_trainer import LoneTrainer, TrainerSetup
from ajet_cli.replay.comparison import (
    EpisodeChange,
    Reproduction,
    StepChange,
    Updates,
    both_metrics,
    compare_updates,
    divergence,
    mean_change,
    reproduction,
)
from ajet_cli.replay.recorded import Preparation, RecordedRun, RecordedStep
from ajet_core.errors import AjetError, RequestError
from ajet_core.interfaces import CallScore, StepReport
from ajet_core.protocol import RunConfig
from ajet_core.timeline import TrainBatch

CHANGEABLE = ("algorithm.", "timelines.", "trainer.settings.")
"""The settings that decide how a recorded batch is trained."""


class Replayer:
    """A trainer that trains each step with the configuration that the run had then.

    :param plan: returns how a configuration is trained.
    :param scratch: a directory for a checkpoint.
    :param changes: settings that replace those of the run, see `changed_config`.
    :ivar preparation: of the present configuration.
    """

    preparation: Preparation

    def __init__(
        self,
        run: RecordedRun,
        trainer: LoneTrainer,
        plan: Callable[[RunConfig], tuple[TrainerSetup, Preparation]],
        scratch: Path,
        changes: Sequence[str] = (),
    ) -> None:
        self.trainer = trainer
        self._run = run
        self._plan = plan
        self._scratch = scratch
        self._changes = changes
        self._config: RunConfig | None = None

    async def begin(self, checkpoint: Path | None, step: int) -> None:
        """Continue from a checkpoint of a step, or from the model if there is none."""
        self._choose(step + 1)
        await self.trainer.begin(checkpoint, step)

    async def reach(self, step: int) -> AsyncIterator[Reproduction]:
        """Bring the trainer to the weights before a step; yield each step that is trained for it.

        :raises RequestError: an earlier step is missing.
        """
        checkpoint = self._run.checkpoint_before(step)
        start = 0 if checkpoint is None else checkpoint.step
        await self.begin(None if checkpoint is None else checkpoint.directory, start)
        for number in range(start + 1, step):
            reproduced, _, _ = await self.rerun(await self._run.step(number))
            yield reproduced

    async def configure(self, number: int) -> None:
        """Use the configuration of a step, with the present weights."""
        if not self._choose(number):
            return
        shutil.rmtree(self._scratch, ignore_errors=True)
        await self.trainer.save(self._scratch)
        await self.trainer.begin(self._scratch, number - 1)

    async def rerun(self, recorded: RecordedStep) -> tuple[Reproduction, TrainBatch, StepReport]:
        """Train a step as it was trained, and compare it with its record."""
        await self.configure(recorded.number)
        data = self.preparation.data(recorded, self.trainer.info)
        report = await self.trainer.step(data.batch)
        compared = reproduction(
            recorded.number,
            scores_of(recorded),
            recorded.record.metrics,
            data.batch.calls,
            report,
            prepared=data.metrics(),
        )
        return compared, data.batch, report

    def _choose(self, number: int) -> bool:
        """Use the configuration of a step from the next `begin` on; return whether it differs."""
        config = changed_config(self._run.config_of(number), self._changes, CHANGEABLE)
        if config == self._config:
            return False
        setup, self.preparation = self._plan(config)
        self.trainer.use(setup)
        self._config = config
        return True


def scores_of(recorded: RecordedStep) -> Mapping[str, CallScore]:
    """Return the recorded scores of all calls by id."""
    return {call_id: score for one in recorded.episodes for call_id, score in one.scores.items()}


async def retrain_step(
    recorded: RecordedStep, usual: Replayer, changed: Replayer, scratch: Path
) -> StepChange:
    """Train a step as it was and with other settings, from the same weights.

    Afterwards the first trainer has the weights after the step as recorded.

    :param usual: has the weights before the step.
    :param changed: starts from the weights of the first.
    :param scratch: a directory for checkpoints.
    :raises RequestError: the changed settings cannot train the batch.
    """
    number = recorded.number
    before, first, second = (scratch / name for name in ("before", "usual", "changed"))
    for directory in (before, first, second):
        shutil.rmtree(directory, ignore_errors=True)
    await usual.configure(number)
    await usual.trainer.save(before)
    await changed.begin(before, number - 1)
    reproduced, batch, report = await usual.rerun(recorded)
    other_batch = changed.preparation.data(recorded, changed.trainer.info).batch
    try:
        other = await changed.trainer.step(other_batch)
    except AjetError as error:
        raise RequestError(
            f"step {number} cannot be trained with the changed settings: {error.message}"
        ) from error
    await usual.trainer.save(first)
    await changed.trainer.save(second)
    betas = (
        usual.preparation.config.algorithm.adam_betas[0],
        changed.preparation.config.algorithm.adam_betas[0],
    )
    updates = (
        compare_updates(before, first, second, betas) if _differs(report, other) else Updates()
    )
    after = await _logprobs(usual.trainer, batch)
    other_after = await _logprobs(changed.trainer, batch)
    return StepChange(
        step=number,
        reproduced=reproduced,
        metrics=both_metrics(report, other),
        gradient_cosine=updates.gradient_cosine,
        update_cosine=updates.update_cosine,
        update_norms=updates.update_norms,
        divergence=None if after is None or other_after is None else divergence(after, other_after),
        episodes=_episodes(recorded, (batch, other_batch), report, (after, other_after)),
    )


def _differs(report: StepReport, other: StepReport) -> bool:
    """Return whether any of two steps changed the weights."""
    return not (report.metrics.get("no_signal") and other.metrics.get("no_signal"))


async def _logprobs(trainer: LoneTrainer, batch: TrainBatch) -> list[list[float]] | None:
    """Return the logprobs of a batch under the present weights, None if it cannot be computed."""
    try:
        return (await trainer.rehearse(batch)).logprobs
    except AjetError:
        return None


def _episodes(
    recorded: RecordedStep,
    batches: tuple[TrainBatch, TrainBatch],
    report: StepReport,
    after: tuple[Sequence[Sequence[float]] | None, Sequence[Sequence[float]] | None],
) -> list[EpisodeChange]:
    tasks = {one.record.episode_id: one.record.task_id for one in recorded.episodes}
    batch = batches[0]
    advantages = [_advantages(one) for one in batches]
    changes = []
    for place, episode in enumerate(batch.episodes):
        calls = [number for number, call in enumerate(batch.calls) if call.episode == place]
        moves = [
            None if one is None or not report.logprobs else mean_change(report.logprobs, one, calls)
            for one in after
        ]
        changes.append(
            EpisodeChange(
                episode.episode_id,
                tasks.get(episode.episode_id, ""),
                episode.reward,
                (
                    advantages[0].get(episode.episode_id, 0.0),
                    advantages[1].get(episode.episode_id, 0.0),
                ),
                (moves[0], moves[1]),
            )
        )
    return sorted(changes, key=lambda change: -change.difference)


def _advantages(batch: TrainBatch) -> dict[str, float]:
    """Return the mean advantage of each episode's calls."""
    by_episode: dict[str, list[float]] = {}
    for call in batch.calls:
        by_episode.setdefault(batch.episodes[call.episode].episode_id, []).append(call.advantage)
    return {episode_id: sum(values) / len(values) for episode_id, values in by_episode.items()}
