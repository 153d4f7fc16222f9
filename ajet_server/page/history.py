"""The metrics of all steps of a run, kept in memory once a page has requested them."""

from __future__ import annotations

import asyncio
import math
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ajet_core.interfaces import BatchRecord, StepRecord
from ajet_core.protocol import StepSummary
from ajet_server.averages import mean as average
from ajet_server.page.models import Curve, StepCurves, StepsQuery
from ajet_server.store.run_store import RunStore

_DIGITS = 6
_COLUMNS = 2000
_ANSWER_BYTES = 16 * 2**20


class StepTable:
    """Metrics by step, in columns: 8 bytes for each number.

    It has the first 2,000 metrics, because clients name components of the reward.
    """

    def __init__(self) -> None:
        self.steps = array("q")
        self.times = array("d")
        self.columns: dict[str, array[float]] = {}

    def add(self, step: int, at: float, metrics: Mapping[str, float]) -> None:
        """Append a step."""
        held = len(self.steps)
        self.steps.append(step)
        self.times.append(at)
        for name, value in metrics.items():
            column = self.columns.get(name)
            if column is None:
                if len(self.columns) >= _COLUMNS:
                    continue
                column = self.columns[name] = array("d", [math.nan]) * held
            column.append(value)
        for name in self.columns.keys() - metrics.keys():
            self.columns[name].append(math.nan)

    def curves(self, query: StepsQuery) -> StepCurves:
        """Return what a page draws: at most `query.points` points, each of consecutive steps."""
        first, last = (bisect_right(self.steps, step) for step in (query.after, query.until))
        each = max(1, math.ceil((last - first) / query.points))
        starts = range(first, last, each)
        ends = [min(start + each, last) for start in starts]
        wanted = query.metrics.split(",") if query.metrics else sorted(self.columns)
        return StepCurves(
            names=sorted(self.columns),
            total=len(self.steps),
            steps=[self.steps[end - 1] for end in ends],
            times=[self.times[end - 1] for end in ends],
            curves={
                name: _curve(self.columns[name], starts, ends, single=each == 1)
                for name in dict.fromkeys(wanted)
                if name in self.columns
            },
        )


@dataclass(frozen=True, slots=True)
class NewestStep:
    """The run that a server has now, and its newest step.

    :param summary: None if the run has no step, or its last one ended before the server started.
    :param ended_at: Unix seconds.
    """

    run_id: str | None
    summary: StepSummary | None
    ended_at: float


class StepHistory:
    """The steps of a server's run. Its methods are called in the server's event loop.

    :param newest: returns the newest step at any time.
    """

    def __init__(self, store: RunStore, newest: Callable[[], NewestStep]) -> None:
        self._store = store
        self._newest = newest
        self._table = StepTable()
        # Of steps that have ended, which do not change.
        self._batches: dict[int, list[BatchRecord]] = {}
        self._step_of: dict[str, int] = {}
        self._known: NewestStep | None = None
        self._rewinds = store.rewinds
        self._loading = asyncio.Lock()
        self._answers: dict[StepsQuery, bytes] = {}

    async def curves(self, query: StepsQuery) -> bytes:
        """Return `StepCurves` as JSON."""
        async with self._loading:
            await self._update()
            if (answer := self._answers.get(query)) is None:
                answer = await asyncio.to_thread(
                    lambda: self._table.curves(query).model_dump_json().encode()
                )
                if sum(map(len, self._answers.values())) + len(answer) > _ANSWER_BYTES:
                    self._answers.clear()
                self._answers[query] = answer
        return answer

    @property
    def seconds_per_step(self) -> float | None:
        """The mean duration of the last 20 steps that were read; None if there are fewer than two.

        It does not wait for the store.
        """
        times = self._table.times[-21:]
        return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None

    async def episodes_of(self, step: int) -> list[str]:
        """Return the episodes of a step's batch, in the order of the batch, aborted ones last."""
        async with self._loading:
            await self._update()
            if (batches := self._batches.get(step)) is None:
                batches = (await self._new_batches()).get(step, [])
        return [id_ for one in batches for id_ in (*one.episode_ids, *one.aborted_ids)]

    async def step_of(self, batch_id: str | None) -> int | None:
        """Return the step that trains a batch; None for none and for a refused one."""
        if batch_id is None:
            return None
        async with self._loading:
            await self._update()
            if (step := self._step_of.get(batch_id)) is not None:
                return step
            return next(
                (
                    step
                    for step, batches in (await self._new_batches()).items()
                    if any(batch.batch_id == batch_id for batch in batches)
                ),
                None,
            )

    async def steps_of(self, batch_ids: Iterable[str]) -> dict[str, int]:
        """Return the steps that train batches, without those of refused ones."""
        async with self._loading:
            await self._update()
            new = await self._new_batches()
            known = {batch.batch_id: step for step, of_new in new.items() for batch in of_new}
            return {
                batch_id: step
                for batch_id in batch_ids
                if (step := known.get(batch_id, self._step_of.get(batch_id))) is not None
            }

    async def _new_batches(self) -> dict[int, list[BatchRecord]]:
        """Read the batches after those that are known; those of steps that have ended are kept."""
        trained = self._table.steps[-1] if self._table.steps else 0
        read: dict[int, list[BatchRecord]] = {}
        for batch in await self._store.batches(after_step=max(self._batches, default=0)):
            read.setdefault(batch.step, []).append(batch)
        for step, batches in read.items():
            if step <= trained:
                self._batches[step] = batches
                self._step_of |= {batch.batch_id: step for batch in batches}
        return read

    async def _update(self) -> None:
        newest, rewinds = self._newest(), self._store.rewinds
        known = self._known
        if newest == known and rewinds == self._rewinds:
            return
        self._answers.clear()
        summary, steps = newest.summary, self._table.steps
        if (
            known is not None
            and newest.run_id == known.run_id
            and rewinds == self._rewinds
            and summary is not None
            and len(steps) > 0
            and summary.step == steps[-1] + 1
        ):
            self._table.add(summary.step, newest.ended_at, summary.metrics)
        else:
            self._table = await _loaded(await self._store.steps())
            self._batches, self._step_of = {}, {}
        self._known, self._rewinds = newest, rewinds


async def _loaded(records: Sequence[StepRecord]) -> StepTable:
    table = StepTable()

    def load() -> None:
        for record in records:
            table.add(record.step, record.finished_at, record.metrics)

    await asyncio.to_thread(load)
    return table


def _curve(
    column: Sequence[float], starts: Sequence[int], ends: Sequence[int], *, single: bool
) -> Curve:
    if single:
        return Curve(mean=[_rounded(column[start]) for start in starts])
    mean: list[float | None] = []
    low: list[float | None] = []
    high: list[float | None] = []
    for start, end in zip(starts, ends, strict=True):
        values = [value for value in column[start:end] if math.isfinite(value)]
        mean.append(_rounded(average(values)) if values else None)
        low.append(_rounded(min(values)) if values else None)
        high.append(_rounded(max(values)) if values else None)
    return Curve(mean=mean, low=low, high=high)


def _rounded(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
