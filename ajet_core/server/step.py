"""One training step: merge, train, publish. The engine's calls wait while weights move."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from ajet_core.errors import StepRefusedError
from ajet_core.interfaces import (
    BatchRecord,
    CallScore,
    EngineStats,
    EpisodeRecord,
    SampleStore,
    StepReport,
    TrainerInfo,
)
from ajet_core.protocol import RunConfig, ServerState, StepSummary
from ajet_core.server.batch_findings import BatchFault
from ajet_core.server.run_setup import ResolvedRun
from ajet_core.server.state import StateBoard
from ajet_core.server.training_data import TrainingData, training_data
from ajet_core.server.workers import RunWorkers
from ajet_core.timeline import TrainBatch


@dataclass(slots=True)
class StepClock:
    """What has to be remembered between steps to say how long things took.

    :ivar rolling_since: clock time at which the present batch began to fill.
    :ivar engine: the engine's counters at that time.
    """

    rolling_since: float
    engine: EngineStats


async def prepare_batch(
    run: ResolvedRun, store: SampleStore, record: BatchRecord, trainer: TrainerInfo
) -> TrainingData:
    """The training data of a batch, made on a thread."""
    episodes: list[EpisodeRecord] = []
    for episode_id in record.episode_ids:
        episode = await store.get_episode(episode_id)
        if episode is not None:
            episodes.append(episode)
    calls = await store.calls(record.episode_ids)
    return await asyncio.to_thread(
        training_data,
        record.batch_id,
        record.step,
        episodes,
        calls,
        config=run.config,
        merger=run.merger,
        trainer=trainer,
    )


@dataclass(frozen=True, slots=True)
class Stepped:
    """A finished step, what it made of its calls, and what was wrong with its batch."""

    summary: StepSummary
    scores: list[CallScore]
    faults: frozenset[BatchFault]


async def train_step(
    run: ResolvedRun,
    workers: RunWorkers,
    record: BatchRecord,
    *,
    store: SampleStore,
    board: StateBoard,
    timing: StepClock,
    clock: Callable[[], float],
    rolls_on: bool,
) -> Stepped:
    """Train on one batch and serve the new weights.

    :param rolls_on: rollouts go on meanwhile, so that the server's state is theirs.

    :raises WorkerDiedError: a worker ended; the batch is still the store's and can be trained again.
    :raises StepRefusedError: the trainer refused the batch; the weights are as before and are served.
    :raises WeightsLostError: the trainer has to be put back to a checkpoint; the batch can be trained again.
    :raises TrainerError: the trainer cannot go on.
    """
    if not rolls_on:
        board.set(ServerState.ROLLING_POST)
    rolled = clock()
    engine_after = await workers.engine.stats()
    data = await prepare_batch(run, store, record, workers.trainer_info)
    batch = data.batch
    merged = clock()
    if run.together:
        # Engine and trainer share the parameters: no forward may run while they change.
        await workers.engine.call("engine.pause")
    try:
        async with _engine_asleep(run, workers):
            report = await workers.trainer.step(batch)
            trained = clock()
            if not rolls_on:
                board.set(ServerState.WEIGHT_SYNCING)
            update = await workers.trainer.publish(run.channel, record.step)
    except StepRefusedError:
        # The weights are what they were, and are served again.
        if run.together:
            await workers.engine.call("engine.resume")
        raise
    published = clock()
    await workers.engine.update_weights(update)
    # Not in a finally: if the step was interrupted, the shared weights may be half-way between two
    # versions, and nothing may be sampled from them any more.
    if run.together:
        await workers.engine.call("engine.resume")
    board.policy_version = record.step
    synced = clock()
    rewards = [episode.reward for episode in batch.episodes]
    summary = StepSummary(
        step=record.step,
        policy_version=record.step,
        metrics={
            **_finite(report.metrics),
            **data.metrics(),
            "reward_mean": sum(rewards) / max(1, len(rewards)),
            "rollout_seconds": rolled - timing.rolling_since,
            "forward_seconds": engine_after.forward_seconds - timing.engine.forward_seconds,
            "merge_seconds": merged - rolled,
            "update_seconds": trained - merged,
            "sync_seconds": synced - trained,
            "publish_seconds": published - trained,
            "load_seconds": synced - published,
            "tokens_trained": float(report.tokens_trained),
            "tokens_per_second": _sampled(data) / max(1e-9, synced - timing.rolling_since),
            **_by_tag(run.config, batch),
        },
        plan=data.plan.chosen,
        forks=data.forks.sentences(),
        findings=list(data.findings.values()),
    )
    return Stepped(summary, _scores(data, report), frozenset(data.findings))


@contextlib.asynccontextmanager
async def _engine_asleep(run: ResolvedRun, workers: RunWorkers) -> AsyncIterator[None]:
    """The trainer has the device's memory within, if the run says so; however it ends, the engine is woken."""
    if not run.config.rollout.engine_sleeps:
        yield
        return
    await workers.engine.call("engine.sleep")
    try:
        yield
    finally:
        await workers.engine.call("engine.wake")


def _scores(data: TrainingData, report: StepReport) -> list[CallScore]:
    calls = data.batch.calls
    logprobs = report.logprobs or [[]] * len(calls)
    # A score is of all the tokens of its call, or of none.
    return [
        CallScore(call.call_id, call.advantage, [] if call.call_id in data.trimmed else found)
        for call, found in zip(calls, logprobs, strict=True)
    ]


def _sampled(data: TrainingData) -> float:
    return float(sum(len(call.logprobs) for call in data.batch.calls))


def _by_tag(config: RunConfig, batch: TrainBatch) -> dict[str, float]:
    """What the batch has of each tag of the mixture."""
    if config.mixture is None:
        return {}
    found: dict[str, float] = {}
    # The mixture may have been changed since the batch was made.
    for tag in sorted({*config.mixture.at(batch.step), *(e.tag for e in batch.episodes)}):
        rewards = [e.reward for e in batch.episodes if e.tag == tag]
        found[f"tasks/{tag}"] = float(len({e.group for e in batch.episodes if e.tag == tag}))
        found[f"episodes/{tag}"] = float(len(rewards))
        if rewards:
            found[f"reward_mean/{tag}"] = sum(rewards) / len(rewards)
    return found


def _finite(metrics: dict[str, float]) -> dict[str, float]:
    """Metrics without NaN and infinity, which JSON cannot carry."""
    return {name: value for name, value in metrics.items() if value - value == 0.0}
