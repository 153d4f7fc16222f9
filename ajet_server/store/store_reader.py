"""Read a run's records for display, also while its server writes them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ajet_core.errors import EpisodeNotFoundError, RequestError
from ajet_core.interfaces import (
    BatchRecord,
    CallScore,
    EpisodeKind,
    EpisodeQuery,
    EpisodeRecord,
    EpisodeState,
    RunRecord,
    SampleStore,
    StepRecord,
)
from ajet_core.timeline import Call

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class EpisodeChoice:
    """A selection of episodes; None means any.

    :param step: only those in the batch of this training step.
    :param refused: only those in batches that the trainer refused; with `step`, those meant for it.
    """

    state: EpisodeState | None = None
    task_id: str | None = None
    step: int | None = None
    kind: EpisodeKind | None = None
    refused: bool = False


@dataclass(frozen=True, slots=True)
class StoredEpisode:
    """An episode with its calls and scores.

    :param step: the training step that consumes it, None if it has no batch or a refused one.
    :param scores: by call id, as `SampleStore.scores`.
    """

    record: EpisodeRecord
    step: int | None
    calls: list[Call]
    scores: dict[str, CallScore]


class StoreReader:
    """An asynchronous context manager that reads a store without locking or changing it.

    :param store: opened and closed by this reader.
    :param run_dir: the run directory, for messages.
    :raises StoreError: the store does not exist or cannot be read; raised on entering the context.
    """

    def __init__(self, store: SampleStore, run_dir: Path) -> None:
        self._store = store
        self.run_dir = run_dir
        # The step that consumes a batch, by batch id; None for one that was refused.
        self._steps: dict[str, int | None] = {}

    async def __aenter__(self) -> Self:
        await self._store.open(read_only=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._store.close()

    async def run(self) -> RunRecord | None:
        """Return the run, None if none was started."""
        return await self._store.get_run()

    async def steps(self) -> list[StepRecord]:
        """Return all steps that have ended, in order."""
        return await self._store.steps()

    async def batches(self) -> list[BatchRecord]:
        """Return the batches that the trainer did not refuse, in the order of their steps."""
        return await self._store.batches(after_step=0)

    async def calls(self, episode_ids: Sequence[str]) -> dict[str, list[Call]]:
        """Return calls by episode, as `SampleStore.calls` does."""
        return await self._store.calls(episode_ids)

    async def get_episode(self, episode_id: str) -> EpisodeRecord | None:
        """Return an episode, None if it is unknown.

        :raises DamagedRecordError: its record cannot be read.
        """
        return await self._store.get_episode(episode_id)

    async def refused(self) -> list[BatchRecord]:
        """Return the batches that the trainer refused, in the order of their intended steps."""
        return await self._store.batches(after_step=0, refused=True)

    async def episode_ids(
        self, choice: EpisodeChoice, *, newest_first: bool = False, limit: int | None = None
    ) -> list[str]:
        """Return ids of episodes in the order of their claims, or of their batches if chosen so."""
        ids: list[str] = []
        async for episode in self.episodes(choice, newest_first=newest_first):
            if limit is not None and len(ids) == limit:
                break
            ids.append(episode.episode_id)
        return ids

    async def records(self, choice: EpisodeChoice) -> list[EpisodeRecord]:
        """Return the same as `episodes` in a list."""
        return [episode async for episode in self.episodes(choice)]

    async def count(self, choice: EpisodeChoice) -> int:
        """Return the number of chosen episodes."""
        return sum([1 async for _ in self.episodes(choice)])

    async def trained_rewards(self) -> AsyncIterator[tuple[int, str, float]]:
        """Yield step, task id and reward of each training episode that a step consumed."""
        async for record in self.episodes(EpisodeChoice(state="ended", kind="train")):
            step = await self._step(record)
            if step is not None and record.reward is not None:
                yield step, record.task_id, record.reward

    async def find(self, prefix: str) -> str:
        """Return the id of the only episode whose id starts with `prefix`.

        :raises EpisodeNotFoundError: there is none.
        :raises RequestError: there are several, and none is exactly `prefix`.
        """
        matching = self._store.episodes(EpisodeQuery(prefix=prefix))
        ids = sorted([episode.episode_id async for episode in matching], key=lambda i: (len(i), i))
        if not ids:
            raise EpisodeNotFoundError(
                f"{self.run_dir} has no episode whose id begins with {prefix!r}: list all "
                "episodes with `ajet inspect RUN`"
            )
        if len(ids) > 1 and ids[0] != prefix:
            more = ", ..." if len(ids) > _SHOWN else ""
            raise RequestError(
                f"several episode ids begin with {prefix!r}: "
                f"{', '.join(ids[:_SHOWN])}{more}; add more characters of the id"
            )
        return ids[0]

    async def load(self, episode_id: str) -> StoredEpisode:
        """Return an episode with its calls and scores.

        :raises EpisodeNotFoundError: the episode is not in the store.
        """
        record = await self._store.get_episode(episode_id)
        if record is None:
            raise EpisodeNotFoundError(f"{self.run_dir} has no episode {episode_id}")
        return StoredEpisode(
            record,
            await self._step(record),
            (await self._store.calls([episode_id]))[episode_id],
            await self._store.scores(episode_id),
        )

    async def episodes(
        self, choice: EpisodeChoice, *, newest_first: bool = False
    ) -> AsyncIterator[EpisodeRecord]:
        """Yield the records of the chosen episodes, in the order of `episode_ids`."""
        query = EpisodeQuery(choice.state, choice.kind, choice.task_id, newest_first=newest_first)
        if choice.step is None and not choice.refused:
            async for episode in self._store.episodes(query):
                yield episode
            return
        after = 0 if choice.step is None else choice.step - 1
        batches = await self._store.batches(after_step=after, refused=choice.refused)
        # Leave out the episodes that were aborted while the batch was filled.
        ids = [i for b in batches if choice.step in (None, b.step) for i in b.episode_ids]
        for episode_id in reversed(ids) if newest_first else ids:
            record = await self._store.get_episode(episode_id)
            if record is not None and query.matches(record):
                yield record

    async def _step(self, record: EpisodeRecord) -> int | None:
        if record.batch_id is None or record.state != "ended":
            return None
        if record.batch_id not in self._steps:
            for batch in await self._store.batches(after_step=0):
                self._steps[batch.batch_id] = batch.step
            for batch in await self.refused():
                self._steps[batch.batch_id] = None
        return self._steps.get(record.batch_id)
