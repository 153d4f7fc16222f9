"""One training step: merge, train, publish. The engine's calls wait while weights move."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from ajet_core.interfaces import BatchRecord, EngineStats, EpisodeRecord, SampleStore
from ajet_core.protocol import ServerState, StepSummary
from ajet_core.server.run_setup import ResolvedRun
from ajet_core.server.state import StateBoard
from ajet_core.server.workers import RunWorkers
from ajet_core.timeline import Call, TrainBatch, TrainEpisode, build_batch


@dataclass(slots=True)
class StepClock:
    """What has to be remembered between steps to say how long things took.

    :ivar rolling_since: clock time at which the present batch began to fill.
    :ivar engine: the engine's counters at that time.
    """

    rolling_since: float
    engine: EngineStats


async def prepare_batch(
    run: ResolvedRun, store: SampleStore, record: BatchRecord, step: int
) -> tuple[TrainBatch, Counter[str]]:
    """The merged training data of a batch, and the number of its calls by finish reason."""
    episodes: list[EpisodeRecord] = []
    for episode_id in record.episode_ids:
        episode = await store.get_episode(episode_id)
        if episode is not None:
            episodes.append(episode)
    calls = await store.calls(record.episode_ids)
    batch = await asyncio.to_thread(_merge, run, record.batch_id, step, episodes, calls)
    reasons = [call.finish_reason for made in calls.values() for call in made]
    return batch, Counter(reasons)


def _merge(
    run: ResolvedRun,
    batch_id: str,
    step: int,
    episodes: list[EpisodeRecord],
    calls: dict[str, list[Call]],
) -> TrainBatch:
    # A call whose client went away was never seen by its agent: the reward is not about it.
    trees = [
        run.merger.merge(
            e.episode_id,
            [call for call in calls[e.episode_id] if call.finish_reason != "abort"],
            "exact",
        )
        for e in episodes
    ]
    train_episodes = [
        TrainEpisode(e.episode_id, e.group, e.reward if e.reward is not None else 0.0, e.tag)
        for e in episodes
    ]
    return build_batch(batch_id, step, train_episodes, trees)


async def train_step(
    run: ResolvedRun,
    workers: RunWorkers,
    record: BatchRecord,
    *,
    store: SampleStore,
    board: StateBoard,
    timing: StepClock,
    clock: Callable[[], float],
) -> StepSummary:
    """Train on one batch and serve the new weights.

    :raises WorkerDiedError: a worker ended; the batch is still the store's and can be trained again.
    :raises TrainerError: the trainer refused the step; weights are as before.
    """
    board.set(ServerState.ROLLING_POST)
    rolled = clock()
    engine_after = await workers.engine.stats()
    batch, calls = await prepare_batch(run, store, record, record.step)
    merged = clock()
    if run.together:
        # Engine and trainer share the parameters: no forward may run while they change.
        await workers.engine.call("engine.pause")
    report = await workers.trainer.step(batch)
    trained = clock()
    board.set(ServerState.WEIGHT_SYNCING)
    update = await workers.trainer.publish(run.channel, record.step)
    await workers.engine.update_weights(update)
    # Not in a finally: if the step was interrupted, the shared weights may be half-way between two
    # versions, and nothing may be sampled from them any more.
    if run.together:
        await workers.engine.call("engine.resume")
    board.policy_version = record.step
    synced = clock()
    rewards = [episode.reward for episode in batch.episodes]
    return StepSummary(
        step=record.step,
        policy_version=record.step,
        metrics={
            **_finite(report.metrics),
            "reward_mean": sum(rewards) / max(1, len(rewards)),
            "rollout_seconds": rolled - timing.rolling_since,
            "forward_seconds": engine_after.forward_seconds - timing.engine.forward_seconds,
            "merge_seconds": merged - rolled,
            "update_seconds": trained - merged,
            "sync_seconds": synced - trained,
            "tokens_raw": float(batch.tokens_raw),
            "tokens_merged": float(sum(len(s.token_ids) for s in batch.sequences)),
            "tokens_trained": float(report.tokens_trained),
            "episodes": float(len(batch.episodes)),
            "calls": float(calls.total()),
            "calls_aborted": float(calls["abort"]),
        },
    )


def _finite(metrics: dict[str, float]) -> dict[str, float]:
    """Metrics without NaN and infinity, which JSON cannot carry."""
    return {name: value for name, value in metrics.items() if value - value == 0.0}
