"""The metrics of a run as curves."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_core.interfaces import BatchRecord, StepRecord, WorkerContext
from ajet_core.protocol import StepSummary
from ajet_server.embedded.settings import SqliteStoreSettings
from ajet_server.page.history import NewestStep, StepHistory, StepTable
from ajet_server.page.models import StepCurves, StepsQuery
from ajet_server.store.run_store import RunStore
from ajet_server.store.sqlite_store import SqliteStore

_VALUES = st.none() | st.floats(-1e6, 1e6)


def table(rows: list[Mapping[str, float]]) -> StepTable:
    """Steps with these metrics."""
    steps = StepTable()
    for step, metrics in enumerate(rows, 1):
        steps.add(step, 1000.0 + step, metrics)
    return steps


@given(
    rows=st.lists(st.dictionaries(st.sampled_from(["loss", "kl"]), _VALUES), max_size=60),
    points=st.integers(1, 70),
    after=st.integers(0, 70),
)
def test_each_step_is_in_exactly_one_point(
    rows: list[dict[str, float | None]], points: int, after: int
) -> None:
    metrics = [{k: v for k, v in row.items() if v is not None} for row in rows]
    found = table(list(metrics)).curves(StepsQuery(points=points, after=after))
    steps = range(min(after, len(rows)) + 1, len(rows) + 1)
    assert len(found.steps) <= points
    assert found.total == len(rows)
    assert sorted(found.steps) == found.steps
    assert found.steps[-1:] == list(steps)[-1:]
    begin = steps.start
    for i, end in enumerate(found.steps):
        for name, curve in found.curves.items():
            values = [metrics[s - 1][name] for s in range(begin, end + 1) if name in metrics[s - 1]]
            if not values:
                assert curve.mean[i] is None
                continue
            assert curve.mean[i] == pytest.approx(math.fsum(values) / len(values), rel=1e-4, abs=1)
            if curve.low:
                assert curve.low[i] == pytest.approx(min(values), rel=1e-4)
                assert curve.high[i] == pytest.approx(max(values), rel=1e-4)
        begin = end + 1
    assert begin == steps.stop


def test_values_that_are_not_finite_are_left_out() -> None:
    found = table([{"loss": math.nan}, {"loss": math.inf}, {"loss": 2.0}]).curves(StepsQuery())
    assert found.curves["loss"].mean == [None, None, 2.0]


def test_unknown_metrics_have_no_curve() -> None:
    found = table([{"loss": 1.0}]).curves(StepsQuery(metrics="kl,loss"))
    assert (list(found.curves), found.names) == (["loss"], ["loss"])


@pytest.fixture
async def store(tmp_path: object) -> RunStore:
    """An empty store."""
    run_store = RunStore(SqliteStore(SqliteStoreSettings(), WorkerContext(tmp_path)))  # type: ignore[arg-type]
    await run_store.open()
    return run_store


async def _train(store: RunStore, step: int, loss: float) -> StepSummary:
    metrics = {"loss": loss}
    await store.add_batch(BatchRecord(f"batch-{step}-{loss}", step, [], 1.0))
    await store.add_step(StepRecord(step, f"batch-{step}-{loss}", metrics, 10.0 * step))
    return StepSummary(step=step, policy_version=step, metrics=metrics)


async def test_new_steps_and_returns_to_earlier_ones_are_seen(store: RunStore) -> None:
    newest: list[StepSummary | None] = [None]
    history = StepHistory(store, lambda: NewestStep("run", newest[0], 20.0))

    async def losses(last: StepSummary | None) -> list[float | None]:
        newest[0] = last
        answer = await history.curves(StepsQuery())
        curves = StepCurves.model_validate_json(answer).curves
        return curves["loss"].mean if curves else []

    assert await losses(None) == []
    assert await losses(await _train(store, 1, 0.5)) == [0.5]
    assert await losses(await _train(store, 2, 0.25)) == [0.5, 0.25]
    await _train(store, 3, 0.125)
    assert await losses(await _train(store, 4, 0.75)) == [0.5, 0.25, 0.125, 0.75]
    await store.rewind(3)
    await _train(store, 4, 7.0)
    # The page has not asked since the return: the step that it knows as the fourth is another.
    assert await losses(await _train(store, 5, 8.0)) == [0.5, 0.25, 0.125, 7.0, 8.0]
    await store.close()


async def test_a_return_to_an_earlier_step_is_seen_without_a_new_one(store: RunStore) -> None:
    last = [await _train(store, 1, 0.5)]
    history = StepHistory(store, lambda: NewestStep("run", last[0], 10.0))
    await history.curves(StepsQuery())
    last[0] = await _train(store, 2, 0.25)
    assert StepCurves.model_validate_json(await history.curves(StepsQuery())).total == 2
    await store.rewind(1)
    assert StepCurves.model_validate_json(await history.curves(StepsQuery())).total == 1
    await store.close()


async def test_the_pace_is_that_of_the_last_steps(store: RunStore) -> None:
    history = StepHistory(store, lambda: NewestStep("run", None, 0.0))
    assert history.seconds_per_step is None
    for step in range(1, random.randint(3, 40)):
        await _train(store, step, 0.0)
    await history.curves(StepsQuery())
    assert history.seconds_per_step == 10.0
    await store.close()


def test_one_step_alone_can_be_asked_for() -> None:
    found = table([{"loss": float(step)} for step in range(1, 5001)])
    (point,) = [found.curves(StepsQuery(after=6, until=7, points=1))]
    assert (point.steps, point.curves["loss"].mean) == ([7], [7.0])


def test_a_table_has_a_limited_number_of_metrics() -> None:
    held = StepTable()
    held.add(1, 1.0, {"reward_mean": 1.0})
    held.add(2, 2.0, {f"component_mean/{number}": 1.0 for number in range(3000)})
    held.add(3, 3.0, {"reward_mean": 3.0})
    assert len(held.columns) == 2000
    assert list(held.columns["reward_mean"])[::2] == [1.0, 3.0]
