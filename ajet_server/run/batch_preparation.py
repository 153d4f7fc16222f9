"""Turn a stored batch into training data and the summary of its step.

Everything that is computed from client data is computed here, before the trainer sees the batch. If
it fails, the episodes that cause the failure are identified, so that the others can be trained.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ajet_core.errors import (
    DamagedRecordError,
    PluginError,
    StepRefusedError,
    WeightsLostError,
    WorkerError,
)
from ajet_core.interfaces import BatchRecord, EpisodeRecord, StepReport, TrainerInfo
from ajet_core.protocol import StepSummary
from ajet_core.timeline import Call, TrainBatch
from ajet_server.batches.batch_facts import lost_facts
from ajet_server.batches.culprits import find_culprits
from ajet_server.batches.training_data import TrainingData, training_data
from ajet_server.run.run_setup import ResolvedRun
from ajet_server.store.run_store import RunStore

_log = logging.getLogger("ajet.server")

_REASON_CHARACTERS = 500
# The limit for one client's episodes. Each rehearsal takes as long as a step; 16 are enough to find
# a single faulty episode among 64.
_REHEARSALS = 16


class UnprocessableError(Exception):
    """Episodes of a batch cannot be processed or trained; only raised inside the server process.

    :ivar refusal: the reason to store with the episodes.
    :ivar episode_ids: the episodes to leave out so that the rest can be trained; empty if all of
        them worked when they were tried again.
    :ivar by_plugin: whether the merger or the advantage estimator failed.
    :ivar alone: whether it fails on each of these episodes alone, and not on the others.
    """

    def __init__(
        self,
        refusal: StepRefusedError,
        episode_ids: Iterable[str],
        *,
        by_plugin: bool = False,
        alone: bool = False,
    ) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
        self.episode_ids = frozenset(episode_ids)
        self.by_plugin = by_plugin
        self.alone = alone


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """A batch ready to train.

    :param summary: of its step, without the results of training.
    """

    data: TrainingData
    summary: StepSummary


@dataclass(frozen=True, slots=True)
class _StoredEpisode:
    record: EpisodeRecord
    calls: list[Call]


async def prepare_batch(
    run: ResolvedRun, store: RunStore, record: BatchRecord, trainer: TrainerInfo
) -> PreparedBatch:
    """Prepare the training data of a batch in a thread.

    :raises UnprocessableError: some of its episodes cannot be processed.
    :raises StoreError: the store cannot be read.
    """
    episodes = await _load(store, record)
    lost = lost_facts(await _lost_calls(store, record))

    def prepare(some: Sequence[_StoredEpisode]) -> PreparedBatch:
        return _prepare(run, record, some, trainer, lost)

    async def works(some: Sequence[_StoredEpisode]) -> bool:
        try:
            await asyncio.to_thread(prepare, some)
        except Exception:  # noqa: BLE001 - as below
            return False
        return True

    try:
        return await asyncio.to_thread(prepare, episodes)
    # Merging, planning and plugins process client data: none of their exceptions may end the run.
    except Exception as error:
        _log.error("cannot process batch %s", record.batch_id, exc_info=error)
        culprits = await find_culprits(episodes, _client, works)
        ids = [culprit.record.episode_id for culprit in culprits]
        by_plugin = isinstance(error, PluginError)
        some = by_plugin and len(ids) < len(episodes)
        alone = some and not [culprit for culprit in culprits if await works([culprit])]
        raise UnprocessableError(_refusal(error), ids, by_plugin=by_plugin, alone=alone) from error


async def untrainable_episodes(
    run: ResolvedRun,
    store: RunStore,
    record: BatchRecord,
    trainer: TrainerInfo,
    rehearse: Callable[[TrainBatch], Awaitable[StepReport]],
) -> frozenset[str]:
    """Rehearse parts of a batch to find the episodes for which the trainer refuses it.

    :param rehearse: as `Trainer.rehearse`.
    :return: their ids: all if nothing can be trained, none if no rehearsal is refused.
    :raises WeightsLostError: the trainer must be restored from a checkpoint.
    :raises WorkerError: the trainer's worker must be replaced.
    :raises PluginError: the merger or the estimator fails on a part, which says nothing about the
        trainer.
    """
    episodes = await _load(store, record)

    async def works(some: Sequence[_StoredEpisode]) -> bool:
        try:
            prepared = await asyncio.to_thread(_prepare, run, record, some, trainer, {})
            await rehearse(prepared.data.batch)
        except (WeightsLostError, WorkerError, PluginError):
            raise
        except Exception:  # noqa: BLE001 - as above
            return False
        return True

    culprits = await find_culprits(episodes, _client, works, _REHEARSALS)
    return frozenset(episode.record.episode_id for episode in culprits)


def _client(episode: _StoredEpisode) -> str:
    return episode.record.client_id


async def _load(store: RunStore, record: BatchRecord) -> list[_StoredEpisode]:
    try:
        calls = await store.calls(record.episode_ids)
        episodes = [await store.get_episode(episode_id) for episode_id in record.episode_ids]
    except DamagedRecordError as error:
        _log.error("cannot read batch %s: %s", record.batch_id, error.message)
        return await _load_each(store, record)
    return [_StoredEpisode(episode, calls[episode.episode_id]) for episode in episodes if episode]


async def _lost_calls(store: RunStore, record: BatchRecord) -> list[Call]:
    """Load the calls of aborted episodes, which are only counted: none if they cannot be read."""
    try:
        calls = await store.calls(record.aborted_ids)
    except DamagedRecordError as error:
        _log.warning("cannot read aborted episodes of %s: %s", record.batch_id, error.message)
        return []
    return [call for of_episode in calls.values() for call in of_episode]


async def _load_each(store: RunStore, record: BatchRecord) -> list[_StoredEpisode]:
    """Load the episodes one by one, to identify those with damaged records."""
    loaded: list[_StoredEpisode] = []
    unreadable: dict[str, DamagedRecordError] = {}
    for episode_id in record.episode_ids:
        try:
            calls = await store.calls([episode_id])
            if (episode := await store.get_episode(episode_id)) is not None:
                loaded.append(_StoredEpisode(episode, calls[episode_id]))
        except DamagedRecordError as error:
            unreadable[episode_id] = error
    if unreadable:
        raise UnprocessableError(_refusal(next(iter(unreadable.values()))), unreadable)
    return loaded


def _refusal(error: Exception) -> StepRefusedError:
    if isinstance(error, PluginError):
        return StepRefusedError(error.message[:_REASON_CHARACTERS])
    reason = f"{type(error).__name__}: {error}"
    return StepRefusedError(f"the server cannot process it: {reason[:_REASON_CHARACTERS]}")


def _prepare(
    run: ResolvedRun,
    record: BatchRecord,
    episodes: Sequence[_StoredEpisode],
    trainer: TrainerInfo,
    lost: Mapping[str, float],
) -> PreparedBatch:
    data = training_data(
        record.batch_id,
        record.step,
        [episode.record for episode in episodes],
        {episode.record.episode_id: episode.calls for episode in episodes},
        config=run.config,
        merger=run.merger,
        estimator=run.estimator,
        trainer=trainer,
    )
    if not run.uses_rewards:
        # Supervised training learns from tokens, whatever they were sampled from.
        data.findings.pop("sampled_otherwise", None)
    for call in data.batch.calls:
        if not math.isfinite(call.advantage):
            raise ValueError(f"the advantage of call {call.call_id} is {call.advantage}")
    summary = StepSummary(
        step=record.step,
        policy_version=record.step,
        metrics={**data.metrics(), **lost},
        plan=data.plan.chosen,
        forks=data.forks.sentences(),
        findings=list(data.findings.values()),
    )
    # Detect a summary that cannot be serialised before the step is trained.
    summary.model_dump_json()
    return PreparedBatch(data, summary)
