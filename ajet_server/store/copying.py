"""Copy the records of a run from one store to another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ajet_core.errors import RequestError, StoreError
from ajet_core.interfaces import BatchRecord, CallScore, SampleStore


@dataclass(slots=True)
class Copied:
    """The number of records of each kind that were copied."""

    episodes: int = 0
    calls: int = 0
    batches: int = 0
    steps: int = 0


async def copy_run(
    source: SampleStore, target: SampleStore, progress: Callable[[Copied], None]
) -> Copied:
    """Copy all records, read both stores again, and compare them.

    The run itself is written last. A copy that was interrupted before that is continued.

    :param source: open; nothing may write to it meanwhile.
    :param target: open for writing.
    :param progress: called after each episode.
    :raises RequestError: the source has no run, or the target has one.
    :raises StoreError: a store failed, or the copy differs from the source.
    """
    run = await source.get_run()
    if run is None:
        raise RequestError("there is no run to copy: the store is empty")
    other = await target.get_run()
    if other is not None and other != run:
        raise RequestError(f"the new store already has run {other.run_id}: choose an empty one")
    copied = Copied()
    async for episode in source.episodes():
        calls = (await source.calls([episode.episode_id]))[episode.episode_id]
        # Calls are written together with their episode, so one that is there has them.
        if await target.get_episode(episode.episode_id) is None:
            await target.append(episode, *calls)
        copied.episodes += 1
        copied.calls += len(calls)
        progress(copied)
    for batch in (batches := await _batches(source)):
        await target.append(batch)
        copied.batches += 1
    of_batch = {batch.batch_id: batch for batch in batches}
    for step in await source.steps():
        scores: list[CallScore] = []
        if (trained := of_batch.get(step.batch_id)) is not None:
            for episode_id in trained.episode_ids:
                scores += (await source.scores(episode_id)).values()
        await target.append(replace(step, scores=scores))
        copied.steps += 1
    await _compare(source, target)
    await target.append(run)
    return copied


async def _batches(store: SampleStore) -> list[BatchRecord]:
    return [
        *await store.batches(after_step=0),
        *await store.batches(after_step=0, refused=True),
    ]


async def _compare(source: SampleStore, target: SampleStore) -> None:
    """:raises StoreError: a record of the target differs from the source's."""
    ids = []
    async for episode in source.episodes():
        episode_id = episode.episode_id
        ids.append(episode_id)
        same = (
            await target.get_episode(episode_id) == episode
            and await target.calls([episode_id]) == await source.calls([episode_id])
            and await target.scores(episode_id) == await source.scores(episode_id)
        )
        if not same:
            raise StoreError(f"episode {episode_id} differs in the new store: do not use it")
    if [episode.episode_id async for episode in target.episodes()] != ids:
        raise StoreError("the new store has other episodes than the old one: do not use it")
    if (
        await _batches(target) != await _batches(source)
        or await target.steps() != await source.steps()
        or await target.call_totals() != await source.call_totals()
    ):
        raise StoreError("the new store has other batches or steps: do not use it")
