"""What is too old is context, and is not trained."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ajet_core.protocol import RolloutConfig, RunConfig
from ajet_core.server.staleness import keep_fresh
from ajet_core.testing.samples import make_call
from ajet_core.timeline import Call


def sampled_by(*versions: int, call_id: str = "c", index: int = 0) -> Call:
    made = make_call(call_id, [1, 2, 3], [*range(10, 10 + len(versions))], index=index)
    return replace(made, policy_versions=list(versions))


def bounds(most: int = 2, mean: float | None = None) -> RolloutConfig:
    return RolloutConfig(mode="async", max_staleness=most, max_mean_staleness=mean)


def test_the_first_tokens_of_a_call_become_part_of_its_prompt_when_they_are_too_old() -> None:
    call = sampled_by(4, 4, 7, 8)
    found = keep_fresh([[call]], 8, bounds())
    ((kept,),) = found.calls
    assert kept.token_ids == call.token_ids
    assert kept.sampled_ids == call.sampled_ids[2:]
    assert kept.logprobs == call.logprobs[2:]
    assert kept.policy_versions == [7, 8]
    assert found.trimmed == {"c"}
    assert found.metrics() == {"staleness_mean": 0.5, "staleness_max": 1.0, "tokens_stale": 2.0}


def test_a_call_that_is_too_old_as_a_whole_is_missing_and_a_fresh_one_is_itself() -> None:
    old, new = sampled_by(1, 1), sampled_by(8, call_id="d")
    found = keep_fresh([[old, new]], 8, bounds())
    assert found.calls == [[new]]
    assert (found.dropped, found.trimmed) == (2, frozenset())


def test_what_weights_sampled_that_were_lost_in_a_crash_is_not_older_than_now() -> None:
    found = keep_fresh([[sampled_by(9, 9)]], 8, bounds())
    assert found.metrics()["staleness_max"] == 0.0
    assert found.dropped == 0


def test_the_mean_bound_leaves_the_oldest_out_first() -> None:
    calls = [[sampled_by(6, 6, 7, 8, 8)]]
    assert keep_fresh(calls, 8, bounds(2, 1.0)).dropped == 0
    found = keep_fresh(calls, 8, bounds(2, 0.5))
    assert found.metrics() == {
        "staleness_mean": pytest.approx(1 / 3),
        "staleness_max": 1.0,
        "tokens_stale": 2.0,
    }


def test_the_mean_bound_leaves_out_no_more_than_it_must() -> None:
    old, new = [sampled_by(7, 7, call_id=f"old{i}") for i in range(4)], sampled_by(8, 8)
    found = keep_fresh([old, [new]], 8, bounds(2, 0.75))
    assert found.calls == [old[1:], [new]]
    assert found.metrics() == {"staleness_mean": 0.75, "staleness_max": 1.0, "tokens_stale": 2.0}


versions = st.lists(st.integers(0, 12), max_size=8)


@given(
    st.lists(st.lists(versions, max_size=4), max_size=4),
    st.integers(1, 6),
    st.floats(0.1, 6) | st.none(),
)
def test_no_token_and_no_batch_is_older_than_the_bounds(
    episodes: list[list[list[int]]], most: int, mean: float | None
) -> None:
    rollout = bounds(most, None if mean is None else min(mean, most))
    calls = [
        [sampled_by(*v, call_id=f"{i}-{j}", index=j) for j, v in enumerate(made)]
        for i, made in enumerate(episodes)
    ]
    found = keep_fresh(calls, 10, rollout)
    ages = [max(0, 10 - v) for made in found.calls for c in made for v in c.policy_versions]
    assert all(age <= most for age in ages)
    if rollout.max_mean_staleness is not None and ages:
        assert sum(ages) / len(ages) <= rollout.max_mean_staleness * (1 + 1e-9)
    sampled = sum(len(v) for made in episodes for v in made)
    assert sampled == found.dropped + len(ages)
    assert found.staleness.total() == len(ages)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"mode": "async", "max_staleness": 0}, "at least 1"),
        ({"mode": "async", "max_mean_staleness": 0}, "above 0"),
        ({"mode": "async", "spare_tasks": 1}, "spare_tasks is for mode sync"),
        ({"mode": "async", "drain_seconds": 1}, "drain_seconds is for mode sync"),
        ({"max_staleness": 0}, "set late to drop"),
        ({"max_mean_staleness": 0}, "set late to drop"),
        ({"max_staleness": 2, "max_mean_staleness": 3}, "bounds nothing"),
    ],
)
def test_bounds_that_leave_nothing_to_train_are_refused(
    fields: dict[str, object], told: str
) -> None:
    with pytest.raises(ValidationError, match=told):
        RolloutConfig.model_validate(fields)


@pytest.mark.parametrize(
    ("full_by", "mean", "possible"),
    [
        ("tasks", 0.25, True),
        ("tasks", 0.24, False),
        ("episodes", 0.125, True),
        ("episodes", 0.12, False),
    ],
)
def test_a_mean_that_no_asynchronous_batch_can_have_is_refused(
    full_by: str, mean: float, possible: bool
) -> None:
    config = {
        "model": {"path": "m"},
        "batch": {"tasks": 4, "episodes_per_task": 2, "full_by": full_by},
        "rollout": {"mode": "async", "max_mean_staleness": mean},
    }
    if possible:
        RunConfig.model_validate(config)
    else:
        with pytest.raises(ValidationError, match=f"is below what a batch needs .* {full_by} "):
            RunConfig.model_validate(config)
