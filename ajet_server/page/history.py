"""The metrics of all steps of a run, kept in memory once a page has asked for them."""

from __future__ import annotations

import asyncio
import math
import time
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence

from ajet_core.interfaces import StepRecord
from ajet_core.protocol import StepSummary
from ajet_server.page.models import Curve, StepCurves, StepsQuery
from ajet_server.store.run_store import RunStore

_DIGITS = 6
_ANSWERS = 64


class StepTable:
    """Metrics by step, in columns: 8 bytes for each number."""

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
                column = self.columns[name] = array("d", [math.nan]) * held
            column.append(value)
        for name in self.columns.keys() - metrics.keys():
            self.columns[name].append(math.nan)

    def curves(self, query: StepsQuery) -> StepCurves:
        """Return what a page draws: at most `query.points` points, each of consecutive steps."""
        first = bisect_right(self.steps, query.after)
        count = len(self.steps) - first
        each = max(1, math.ceil(count / query.points))
        starts = range(first, len(self.steps), each)
        ends = [min(start + each, len(self.steps)) for start in starts]
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


class StepHistory:
    """The steps of a server's run. Its methods are called in the server's event loop."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._table = StepTable()
        self._run_id: str | None = None
        self._last: StepSummary | None = None
        self._rewinds = store.rewinds
        self._loading = asyncio.Lock()
        self._answers: dict[StepsQuery, bytes] = {}

    async def curves(
        self, query: StepsQuery, *, run_id: str | None, last: StepSummary | None
    ) -> bytes:
        """Return `StepCurves` as JSON.

        :param run_id: the server's run now.
        :param last: its last step; None if it has none, or ended before the server started.
        """
        async with self._loading:
            if run_id != self._run_id or last is not self._last:
                self._answers.clear()
                if not self._continues(run_id, last):
                    self._table = await _loaded(await self._store.steps())
                self._run_id, self._last = run_id, last
            if (answer := self._answers.get(query)) is None:
                if len(self._answers) == _ANSWERS:
                    self._answers.clear()
                curves = await asyncio.to_thread(self._table.curves, query)
                answer = self._answers[query] = curves.model_dump_json().encode()
        return answer

    def _continues(self, run_id: str | None, last: StepSummary | None) -> bool:
        """Append a single new step; of any others the store is asked."""
        known = self._table.steps
        rewinds, self._rewinds = self._rewinds, self._store.rewinds
        if rewinds != self._rewinds or run_id != self._run_id or last is None or not known:
            return False
        if last.step != known[-1] + 1:
            return False
        self._table.add(last.step, time.time(), last.metrics)
        return True

    async def seconds_per_step(
        self, *, run_id: str | None, last: StepSummary | None
    ) -> float | None:
        """Return the mean duration of the last 20 steps, None before the second step."""
        await self.curves(StepsQuery(metrics="-", points=1), run_id=run_id, last=last)
        times = self._table.times[-21:]
        return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None


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
        mean.append(_rounded(math.fsum(values) / len(values)) if values else None)
        low.append(_rounded(min(values)) if values else None)
        high.append(_rounded(max(values)) if values else None)
    return Curve(mean=mean, low=low, high=high)


def _rounded(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
