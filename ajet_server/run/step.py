"""One training step: prepare, train, publish. The engine's calls wait while weights change."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

from ajet_core.errors import StepRefusedError, TrainerError, WeightsLostError
from ajet_core.interfaces import (
    BatchRecord,
    CallScore,
    EngineStats,
    StepReport,
)
from ajet_core.protocol import ServerState, StepSummary
from ajet_core.timeline import TrainBatch
from ajet_server.averages import mean
from ajet_server.batches.batch_findings import BatchFault
from ajet_server.batches.training_data import TrainingData
from ajet_server.run.batch_preparation import prepare_batch
from ajet_server.run.probing import probed
from ajet_server.run.run_setup import ResolvedRun
from ajet_server.run.run_workers import RunWorkers
from ajet_server.run.sealing import SealWatch
from ajet_server.state import StateBoard
from ajet_server.store.run_store import RunStore


@dataclass(slots=True)
class StepClock:
    """The start of a step's rollouts, from which durations are computed.

    :ivar rolling_since: clock time at which the batch started to fill.
    :ivar engine: the engine's counters at that time.
    :ivar rollout_seconds: while the batch filled, with an episode open.
    :ivar idle_seconds: while the batch filled, with no episode open.
    :ivar trained: whether the trainer has trained the batch, so that the batch causes no failure
        after that.
    """

    rolling_since: float
    engine: EngineStats
    rollout_seconds: float = 0.0
    idle_seconds: float = 0.0
    trained: bool = False


@dataclass(frozen=True, slots=True)
class Stepped:
    """The result of a finished step.

    :param faults: the findings about its batch, by kind.
    :param clients: the statistics of each client's part of the batch, by client id.
    """

    summary: StepSummary
    scores: list[CallScore]
    faults: Mapping[BatchFault, str]
    clients: dict[str, dict[str, float]]


async def train_step(
    run: ResolvedRun,
    workers: RunWorkers,
    record: BatchRecord,
    *,
    store: RunStore,
    board: StateBoard,
    timing: StepClock,
    clock: Callable[[], float],
    seals: SealWatch,
    rolls_on: bool,
    judge: Callable[[BatchRecord, TrainingData], None],
) -> Stepped:
    """Train on one batch and serve the new weights.

    :param seals: gives the new weights to the engine.
    :param judge: checks the batch before anything changes; if it raises, the step ends.
    :param rolls_on: whether rollouts continue meanwhile and determine the server's state.

    :raises SealError: no server of the engine has the published weights.
    :raises UnprocessableError: some of its episodes cannot be processed; nothing was trained.
    :raises WorkerDiedError: a worker ended; the batch is still stored and can be trained again.
    :raises StepRefusedError: the trainer refused the batch or could not compute it; the weights are
        unchanged and are served.
    :raises WeightsLostError: the trainer must be restored from a checkpoint; the batch can be
        trained again.
    :raises TrainerError: the trainer cannot publish the new weights.
    """
    if not rolls_on:
        board.set(ServerState.ROLLING_POST)
    rolled = clock()
    engine_after = await workers.engine.stats()
    prepared = await prepare_batch(run, store, record, workers.trainer_info)
    data = prepared.data
    judge(record, data)
    merged = clock()
    if run.together:
        # Engine and trainer share the parameters: no forward pass may run while they change.
        await workers.engine.pause()
    try:
        async with engine_asleep(run, workers):
            report = await _trained(workers, data.batch)
            trained, timing.trained = clock(), True
            if not rolls_on:
                board.set(ServerState.WEIGHT_SYNCING)
            update = await workers.trainer.publish(run.channel, record.step)
            update = await probed(run, workers, update)
    except StepRefusedError:
        # The weights are unchanged and can be served again.
        if run.together:
            await workers.engine.resume()
        raise
    published = clock()
    seal = await seals.serve(workers.engine, update)
    # Not in a finally clause: after an interrupted step the shared weights may be between two
    # versions, and nothing may be sampled from them.
    if run.together:
        await workers.engine.resume()
    board.policy_version = record.step
    synced = clock()
    measured = {
        **report.metrics,
        **prepared.summary.metrics,
        "rollout_seconds": timing.rollout_seconds,
        "idle_seconds": timing.idle_seconds,
        "forward_seconds": engine_after.forward_seconds - timing.engine.forward_seconds,
        "merge_seconds": merged - rolled,
        "update_seconds": trained - merged,
        "sync_seconds": synced - trained,
        "publish_seconds": published - trained,
        "load_seconds": synced - published,
        "seal_seconds": update.seal_seconds + seal.seconds,
        "sealed_tensors": float(seal.tensors),
        "sealed_servers": float(seal.servers),
        **({"probe_change": seal.change, "probe_noise": seal.noise} if seal.noise else {}),
        "tokens_trained": float(report.tokens_trained),
        "tokens_per_second": _sampled(data) / max(1e-9, synced - timing.rolling_since),
    }
    summary = prepared.summary.model_copy(
        update={
            "metrics": _finite(measured),
            "findings": [*prepared.summary.findings, *seal.breaches],
        }
    )
    return Stepped(summary, _scores(data, report), dict(data.findings), _of_clients(data, report))


@contextlib.asynccontextmanager
async def engine_asleep(run: ResolvedRun, workers: RunWorkers) -> AsyncIterator[None]:
    """Let the engine sleep within the context if `rollout.engine_sleeps` is set; then wake it."""
    if not run.config.rollout.engine_sleeps:
        yield
        return
    await workers.engine.sleep()
    try:
        yield
    finally:
        await workers.engine.wake()


@contextlib.asynccontextmanager
async def trainer_alone(run: ResolvedRun, workers: RunWorkers) -> AsyncIterator[None]:
    """Keep the engine off shared weights and memory within the context, as in a training step."""
    if run.together:
        await workers.engine.pause()
    async with engine_asleep(run, workers):
        yield
    # Not in a finally clause, for the same reason as in `train_step`.
    if run.together:
        await workers.engine.resume()


async def _trained(workers: RunWorkers, batch: TrainBatch) -> StepReport:
    """Train on a batch; any failure but `WeightsLostError` leaves the trainer unchanged."""
    try:
        return await workers.trainer.step(batch)
    except (StepRefusedError, WeightsLostError):
        raise
    except TrainerError as error:
        raise StepRefusedError(error.message, param=error.param) from error


def _scores(data: TrainingData, report: StepReport) -> list[CallScore]:
    calls = data.batch.calls
    logprobs = report.logprobs or [[]] * len(calls)
    return [
        CallScore(call.call_id, call.advantage, values)
        for call, values in zip(calls, logprobs, strict=True)
    ]


def _of_clients(data: TrainingData, report: StepReport) -> dict[str, dict[str, float]]:
    """Return each client's statistics, including the trainer's logprob gap for its calls."""
    by_client = {client: dict(figures) for client, figures in data.clients.items()}
    gaps: dict[str, list[float]] = {client: [] for client in by_client}
    # Only the weights from before the step count, as in the trainer's own metric.
    version = data.batch.step - 1
    for call, scored in zip(data.batch.calls, report.logprobs, strict=False):
        one = gaps[data.client_of[call.episode]]
        # Calls that were not computed have no logprobs.
        sampled = zip(scored, call.behaviour, call.policy_versions, strict=False)
        one.extend(abs(ours - theirs) for ours, theirs, of in sampled if of == version)
    for client, values in gaps.items():
        if values:
            by_client[client]["logprob_gap_mean"] = mean(values)
    return {client: _finite(figures) for client, figures in by_client.items()}


def _sampled(data: TrainingData) -> float:
    return float(sum(len(call.logprobs) for call in data.batch.calls))


def _finite(metrics: dict[str, float]) -> dict[str, float]:
    """Drop NaN and infinite values, which JSON cannot represent."""
    return {name: value for name, value in metrics.items() if value - value == 0.0}
