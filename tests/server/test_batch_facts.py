"""The figures by which a batch is judged before it is trained on."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_core.interfaces import EpisodeRecord
from ajet_core.timeline import Call, MessageText, PlacedMessage, TrainCall, group_advantages
from ajet_server.admission.task_group import rewards_differ
from ajet_server.batches.batch_facts import TAG_FACTS, batch_facts, tag_facts
from ajet_server.store.call_metadata import MALFORMED_CALLS
from ajet_testing.suites.samples import make_call, make_episode


def episode(name: str, reward: float, group: str = "g") -> EpisodeRecord:
    return replace(make_episode(name, group=group), state="ended", reward=reward)


def facts(
    records: list[EpisodeRecord], calls: list[Call], advantages: list[float]
) -> dict[str, float]:
    train = [TrainCall.of(call, 0, a) for call, a in zip(calls, advantages, strict=True)]
    return batch_facts(records, calls, train)


def call(name: str, tokens: int, reason: str = "stop", **metadata: str) -> Call:
    return replace(
        make_call(name, [1], list(range(tokens))), finish_reason=reason, metadata=metadata
    )


def test_tasks_whose_rewards_are_all_equal_are_counted() -> None:
    records = [episode("a", 1), episode("b", 1), episode("c", 0, "h"), episode("d", 1, "h")]
    found = facts(records, [], [])
    assert (found["tasks"], found["tasks_equal"]) == (2, 1)
    assert found["reward_std"] == pytest.approx(math.sqrt(3) / 4)


def test_tasks_whose_answers_are_identical_are_counted() -> None:
    records = [episode("a", 1), episode("b", 1), episode("c", 1, "h"), episode("d", 1, "h")]
    calls = [
        replace(call(name, tokens), episode_id=name)
        for name, tokens in [("a", 3), ("b", 3), ("c", 3), ("d", 4)]
    ]
    assert facts(records, calls, [0.0] * 4)["tasks_alike"] == 1
    # A single episode, and episodes without answers, show nothing about the sampling.
    assert facts(records[:1], calls[:1], [0.0])["tasks_alike"] == 0
    assert facts(records, [], [])["tasks_alike"] == 0


def test_answers_are_counted_by_what_is_wrong_with_them() -> None:
    calls = [call("a", 2, "length"), call("b", 4, **{MALFORMED_CALLS: "2"}), call("c", 3)]
    found = facts([], calls, [0.0, 0.0, 0.0])
    assert (found["calls_cut_off"], found["calls_malformed"]) == (1, 1)
    assert found["tokens_per_call"] == 3
    assert found["no_signal"] == 1


def test_the_mean_reward_counts_what_calls_and_agents_earned() -> None:
    records = [
        replace(episode("a", 0.0), agent_rewards={"guide": 1.0, "other": 9.0}),
        replace(episode("b", 1.0), call_rewards={"x": 0.25, "y": 0.25}),
        replace(episode("c", 0.0), agent_rewards={"guide": 1.0}),
    ]
    calls = [
        *(replace(call(f"a{i}", 1), episode_id="a", agent="guide") for i in range(2)),
        replace(call("b", 1), episode_id="b"),
        replace(call("c0", 1), episode_id="c", agent="guide"),
        replace(call("c1", 1), episode_id="c", agent="follower"),
    ]
    found = facts(records, calls, [0.0] * len(calls))
    assert found["reward_mean"] == pytest.approx((1.0 + 1.5 + 0.5) / 3)


def test_the_bias_weighs_advantages_by_their_tokens() -> None:
    found = facts([], [call("a", 1), call("b", 3)], [1.0, -1.0])
    assert found["advantage_bias"] == pytest.approx(-0.5)
    assert found["no_signal"] == 0


def test_each_tag_has_figures_of_its_own() -> None:
    records = [
        replace(episode(name, reward), tag=tag)
        for name, reward, tag in [("a", 1, "x"), ("b", 0, "x"), ("c", 5, "y")]
    ]
    made = [[call("a", 2)], [], [call("c", 3), call("d", 5, **{MALFORMED_CALLS: "1"})]]
    found = tag_facts(["z"], records, made)
    assert (found["reward_mean/x"], found["reward_std/x"], found["reward_mean/y"]) == (0.5, 0.5, 5)
    assert (found["calls/y"], found["calls_malformed/y"], found["tokens_per_call/y"]) == (2, 1, 4)
    assert {name: value for name, value in found.items() if name.endswith("/z")} == {
        "tasks/z": 0,
        "episodes/z": 0,
    }
    assert {name.partition("/")[0] for name in found} == set(TAG_FACTS)


def test_the_entropy_is_estimated_from_all_sampled_tokens() -> None:
    # The samples' logprobs are -0.1, -0.2, -0.3 and so on.
    found = facts([], [call("a", 1), call("b", 3)], [0.0, 0.0])
    assert found["sampled_entropy"] == pytest.approx((0.1 + 0.1 + 0.2 + 0.3) / 4)
    assert "sampled_entropy" not in facts([], [call("a", 0)], [0.0])
    records = [replace(episode(name, 0), tag=name) for name in "xy"]
    found = tag_facts([], records, [[call("a", 1)], [call("b", 3)]])
    assert found["sampled_entropy/x"] == pytest.approx(0.1)
    assert found["sampled_entropy/y"] == pytest.approx(0.2)


def scored(name: str, reward: float, **components: float) -> EpisodeRecord:
    return replace(episode(name, reward), components=components)


def test_each_component_of_the_reward_has_a_mean_over_the_episodes_that_have_it() -> None:
    records = [scored("a", 1, success=1, moves=3), scored("b", 0, success=0), scored("c", 0)]
    found = facts(records, [], [])
    assert found["component_mean/success"] == 0.5
    assert found["component_mean/moves"] == 3
    assert "component_mean/moves" not in facts(records[1:], [], [])


def test_a_batch_has_at_most_sixteen_components_the_most_frequent_ones() -> None:
    many = {f"x{number}": 1.0 for number in range(40)}
    records = [scored("a", 1, **many), scored("b", 0, z=2.0), scored("c", 0, z=4.0)]
    found = {name for name in facts(records, [], []) if name.startswith("component_mean/")}
    assert len(found) == 16
    assert "component_mean/z" in found


def test_rewards_are_related_to_success_and_length() -> None:
    records = [
        scored("a", 0.2, success=1),
        scored("b", 0.4, success=0),
        scored("c", 0.6, success=0),
    ]
    calls = [
        replace(call(name, tokens), episode_id=name)
        for name, tokens in (("a", 2), ("b", 4), ("c", 6))
    ]
    found = facts(records, calls, [0.0] * 3)
    assert found["reward_length_correlation"] == pytest.approx(1)
    assert found["reward_success_correlation"] == pytest.approx(-math.sqrt(3) / 2)


@pytest.mark.parametrize(
    "records",
    [
        [scored("a", 1, success=1), scored("b", 1, success=0)],
        [scored("a", 1, success=1), scored("b", 0, success=1)],
        [scored("a", 1, success=5), scored("b", 0, success=0)],
        [scored("a", 1, success=1), scored("b", 0)],
    ],
    ids=["equal rewards", "equal success", "not from 0 to 1", "not of all"],
)
def test_without_differences_rewards_are_not_related_to_success(
    records: list[EpisodeRecord],
) -> None:
    assert "reward_success_correlation" not in facts(records, [], [])


def answered(name: str, *texts: str) -> Call:
    said = tuple(
        PlacedMessage(at, at + 1, MessageText("tool", text)) for at, text in enumerate(texts)
    )
    return replace(call(name, 1), messages=said)


def test_answers_of_tools_that_are_alike_are_counted() -> None:
    failing = [answered("a", "ERROR: no key", "Traceback (most recent"), answered("b", "fine")]
    found = facts([], failing, [0.0, 0.0])
    assert (found["tool_answers"], found["tool_answers_alike"]) == (3, 2)
    same = [answered("a", "ok", "ok"), answered("b", "ok", "7")]
    assert facts([], same, [0.0, 0.0])["tool_answers_alike"] == 3
    assert "tool_answers" not in facts([], [call("a", 1)], [0.0])


def test_a_batch_without_calls_has_figures_too() -> None:
    assert facts([], [], [])["advantage_bias"] == 0


@given(st.lists(st.floats(-1e308, 1e308), min_size=1, max_size=8), st.integers(1, 4))
def test_the_figures_are_finite_and_the_bias_is_a_share(rewards: list[float], tokens: int) -> None:
    records = [episode(str(i), reward) for i, reward in enumerate(rewards)]
    calls = [call(str(i), tokens) for i in range(len(rewards))]
    centre = [max(-1e300, min(1e300, reward)) for reward in rewards]
    found = facts(records, calls, group_advantages(centre, ["g"] * len(centre), "group_mean"))
    assert all(map(math.isfinite, found.values()))
    # Of equally long answers advantages cancel out.
    assert -1e-9 <= found["advantage_bias"] <= 1e-9


def test_rewards_differ_where_one_episode_is_better() -> None:
    same = (1.0, {"a": 2.0, "b": 0.0}, {"planner": 3.0})
    assert not rewards_differ([same, same])
    assert not rewards_differ([same, (1.0, {"c": 2.0}, {})])
    assert rewards_differ([same, (0.0, {"c": 2.0}, {})])
    assert rewards_differ([same, (1.0, {"c": 1.0}, {})])
    assert rewards_differ([same, (1.0, {"c": 2.0}, {"planner": 0.0})])
    # Another agent's rewards are compared with that agent's alone.
    assert not rewards_differ([same, (1.0, {"c": 2.0}, {"worker": 0.0})])
    # As many of a reward, or more of it.
    assert rewards_differ([same, (1.0, {"c": 2.0, "d": 2.0}, {})])
    assert rewards_differ([same, (1.0, {}, {})])
