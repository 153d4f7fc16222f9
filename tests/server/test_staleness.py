"""An episode that is too old is left out as a whole; no episode is ever trained in part."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ajet_core.interfaces import EpisodeRecord
from ajet_core.protocol import RolloutConfig, RunConfig
from ajet_core.timeline import Call
from ajet_server.batches.staleness import keep_fresh
from ajet_testing.suites.samples import make_call, make_episode


def sampled_by(*versions: int, call_id: str = "c", index: int = 0) -> Call:
    made = make_call(call_id, [1, 2, 3], [*range(10, 10 + len(versions))], index=index)
    return replace(made, policy_versions=list(versions))


def episodes(**calls: list[Call]) -> tuple[list[EpisodeRecord], dict[str, list[Call]]]:
    return [make_episode(name) for name in calls], calls


def test_an_episode_with_one_token_that_is_too_old_is_left_out_as_a_whole() -> None:
    records, calls = episodes(
        old=[sampled_by(5, 6), sampled_by(8, 8, index=1)], young=[sampled_by(6, 8)], silent=[]
    )
    found = keep_fresh(records, calls, 8, 2)
    assert [record.episode_id for record in found.episodes] == ["young", "silent"]
    assert [record.episode_id for record in found.stale] == ["old"]
    assert found.metrics() == {
        "staleness_mean": 1.0,
        "staleness_max": 2.0,
        "episodes_stale": 1.0,
        "tokens_stale": 4.0,
    }


def test_what_weights_sampled_that_were_lost_in_a_crash_is_not_older_than_now() -> None:
    found = keep_fresh(*episodes(e=[sampled_by(9, 9)]), 8, 0)
    assert found.metrics()["staleness_max"] == 0.0
    assert not found.stale


@given(
    st.lists(st.lists(st.lists(st.integers(0, 12), max_size=8), max_size=4), max_size=4),
    st.integers(0, 6),
)
def test_no_trained_token_is_older_than_the_bound_and_no_episode_is_trained_in_part(
    versions: list[list[list[int]]], most: int
) -> None:
    records, calls = episodes(
        **{
            str(i): [sampled_by(*v, call_id=f"{i}-{j}", index=j) for j, v in enumerate(made)]
            for i, made in enumerate(versions)
        }
    )
    found = keep_fresh(records, calls, 10, most)
    ages = [
        max(0, 10 - version)
        for record in found.episodes
        for call in calls[record.episode_id]
        for version in call.policy_versions
    ]
    assert all(age <= most for age in ages)
    assert found.staleness.total() == len(ages)
    assert sorted([*found.episodes, *found.stale], key=records.index) == records
    assert found.stale_tokens + len(ages) == sum(len(v) for made in versions for v in made)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"mode": "async", "max_staleness": 0}, "at least 1"),
        ({"mode": "async", "max_mean_staleness": 0}, "above 0"),
        ({"mode": "async", "spare_tasks": 1}, "spare_tasks is available in mode sync only"),
        ({"mode": "async", "drain_seconds": 1}, "drain_seconds is available in mode sync only"),
        ({"max_staleness": 0}, "set late to drop"),
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
        with pytest.raises(ValidationError, match=f"is below the minimum of .* {full_by} "):
            RunConfig.model_validate(config)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("importance", ["auto", "ratio", "truncated"])
def test_a_cap_is_refused_where_there_are_no_importance_weights(importance: str, mode: str) -> None:
    config = {
        "model": {"path": "m"},
        "algorithm": {"importance": importance, "importance_cap": 3.0},
        "rollout": {"mode": mode},
    }
    if importance == "truncated" or (importance, mode) == ("auto", "async"):
        assert RunConfig.model_validate(config).importance == "truncated"
    else:
        with pytest.raises(
            ValidationError, match=f"importance {importance} has .* set importance to truncated"
        ):
            RunConfig.model_validate(config)
