import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_core.timeline import (
    AdvantageMethod,
    Aggregation,
    Call,
    CallCredit,
    TrainCall,
    TrainEpisode,
    balanced,
    call_advantages,
    group_advantages,
    token_weights,
)
from ajet_testing.suites.samples import make_call

METHODS: list[AdvantageMethod] = ["group_std", "group_mean", "leave_one_out"]


def test_group_std_by_hand() -> None:
    # mean 2, squared deviations 1 + 1 + 4 = 6 over n - 1 = 2: std sqrt(3)
    got = group_advantages([1.0, 1.0, 4.0], "aaa", "group_std")
    std = math.sqrt(3.0) + 1e-4
    assert got == pytest.approx([-1 / std, -1 / std, 2 / std], rel=1e-12)


def test_group_mean_by_hand() -> None:
    assert group_advantages([1.0, 1.0, 4.0], "aaa", "group_mean") == [-1.0, -1.0, 2.0]


def test_leave_one_out_by_hand() -> None:
    # 1 - (1 + 4) / 2, twice, and 4 - (1 + 1) / 2
    assert group_advantages([1.0, 1.0, 4.0], "aaa", "leave_one_out") == [-1.5, -1.5, 3.0]


def test_groups_are_compared_with_themselves_in_any_order() -> None:
    got = group_advantages([10.0, 0.0, 20.0, 1.0], "baba", "group_mean")
    assert got == [-5.0, -0.5, 5.0, 0.5]


@pytest.mark.parametrize("method", METHODS)
def test_a_group_of_one_has_no_advantage(method: AdvantageMethod) -> None:
    assert group_advantages([3.0], "a", method) == [0.0]


@pytest.mark.parametrize("method", METHODS)
def test_equal_rewards_give_exactly_zero(method: AdvantageMethod) -> None:
    # The mean of these is not 0.1 in floating point.
    assert group_advantages([0.1] * 3 + [0.7] * 7, "aaabbbbbbb", method) == [0.0] * 10


@pytest.mark.parametrize("method", METHODS)
def test_nothing_gives_nothing(method: AdvantageMethod) -> None:
    assert group_advantages([], [], method) == []


REWARDS = st.lists(st.floats(-100, 100), min_size=1, max_size=8)


@given(REWARDS, st.sampled_from(METHODS))
def test_advantages_sum_to_zero_and_keep_the_order(
    rewards: list[float], method: AdvantageMethod
) -> None:
    got = group_advantages(rewards, ["a"] * len(rewards), method)
    assert sum(got) == pytest.approx(0.0, abs=1e-6)
    for reward, advantage in zip(rewards, got, strict=True):
        for other, other_advantage in zip(rewards, got, strict=True):
            assert reward <= other or advantage >= other_advantage


def calls(*agents: str, name: str = "c") -> list[Call]:
    return [_of(agent, f"{name}{i}", i) for i, agent in enumerate(agents)]


def _of(agent: str, call_id: str, index: int) -> Call:
    made = make_call(call_id, [1], [2], index=index)
    fields = {f: getattr(made, f) for f in Call.__dataclass_fields__ if f != "agent"}
    return Call(**fields, agent=agent)


def test_an_episodes_reward_is_about_each_of_its_calls() -> None:
    episodes = [TrainEpisode("x", "g", 1.0), TrainEpisode("y", "g", 0.0)]
    made = [calls("", "", name="x"), calls("", name="y")]
    assert call_advantages(episodes, made, "group_mean") == [[0.5, 0.5], [-0.5]]


def test_returns_to_go_by_hand() -> None:
    # The episodes' own rewards are equal and add nothing. Returns-to-go: x 4, 0, 0 and y 2, 2,
    # which has no third call: there it counts 0.
    episodes = [
        TrainEpisode("x", "g", 1.0, call_rewards={"x0": 4.0, "x2": 0.0}),
        TrainEpisode("y", "g", 1.0, call_rewards={"y1": 2.0}),
    ]
    made = [calls("", "", "", name="x"), calls("", "", name="y")]
    got = call_advantages(episodes, made, "leave_one_out")
    assert got == [[2.0, -2.0, 0.0], [-2.0, 2.0]]
    # Half of it, because the mean of two holds the call's own value.
    assert call_advantages(episodes, made, "group_mean") == [[1.0, -1.0, 0.0], [-1.0, 1.0]]
    # With a discount of 0.5 y has 1 and 2.
    got = call_advantages(episodes, made, "leave_one_out", 0.5)
    assert got == [[3.0, -2.0, 0.0], [-3.0, 2.0]]
    # With 0 a reward is about its own call alone.
    got = call_advantages(episodes, made, "leave_one_out", 0.0)
    assert got == [[4.0, -2.0, 0.0], [-4.0, 2.0]]


def test_an_episode_that_goes_on_alone_is_compared_with_having_stopped() -> None:
    episodes = [
        TrainEpisode("x", "g", 0.0, call_rewards={"x0": 0.5, "x1": 0.3}),
        TrainEpisode("y", "g", 0.0, call_rewards={"y0": 0.5}),
    ]
    made = [calls("", "", name="x"), calls("", name="y")]
    got = call_advantages(episodes, made, "leave_one_out")
    assert got[0] == pytest.approx([0.3, 0.3])
    assert got[1] == pytest.approx([-0.3])


def test_returns_are_compared_by_agent() -> None:
    # The second call of x and the first of y are the worker's first calls.
    episodes = [
        TrainEpisode("x", "g", 0.0, call_rewards={"x1": 1.0}),
        TrainEpisode("y", "g", 0.0, call_rewards={"y0": 3.0}),
    ]
    made = [calls("planner", "worker", name="x"), calls("worker", "planner", name="y")]
    got = call_advantages(episodes, made, "leave_one_out")
    assert got == [[1.0, -2.0], [2.0, -1.0]]


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=6), st.sampled_from(METHODS))
def test_the_reward_of_an_only_call_is_like_that_of_its_episode(
    rewards: list[float], method: AdvantageMethod
) -> None:
    made = [calls("", name=f"e{i}-") for i in range(len(rewards))]
    of_episodes = [TrainEpisode(f"e{i}", "g", r) for i, r in enumerate(rewards)]
    of_calls = [
        TrainEpisode(f"e{i}", "g", 0.0, call_rewards={f"e{i}-0": r}) for i, r in enumerate(rewards)
    ]
    wanted = call_advantages(of_episodes, made, method)
    assert call_advantages(of_calls, made, method) == wanted


def test_group_std_keeps_the_proportion_of_the_two_kinds_of_reward() -> None:
    # Outcomes 1 and 0 around 0.5; returns 0.2 and 0 around 0.1, of one call each.
    episodes = [
        TrainEpisode("x", "g", 1.0, call_rewards={"x0": 0.2}),
        TrainEpisode("y", "g", 0.0),
    ]
    made = [calls("", name="x"), calls("", name="y")]
    scale = math.sqrt(2 * 0.5**2 + 2 * 0.1**2) + 1e-4
    got = call_advantages(episodes, made, "group_std")
    assert got[0] == pytest.approx([0.6 / scale])
    assert got[1] == pytest.approx([-0.6 / scale])


def test_equal_rewards_of_calls_give_exactly_zero() -> None:
    episodes = [TrainEpisode(f"e{i}", "g", 0.1, call_rewards={f"e{i}-0": 0.1}) for i in range(3)]
    made = [calls("", name=f"e{i}-") for i in range(3)]
    for method in METHODS:
        assert call_advantages(episodes, made, method) == [[0.0]] * 3


def test_process_supervision_by_hand() -> None:
    # Of the group's call rewards 4, 0 and 2 the mean is 2: relative 2, -2 and 0. The episodes' own
    # rewards are equal and add nothing.
    episodes = [
        TrainEpisode("x", "g", 1.0, call_rewards={"x0": 4.0, "x2": 0.0}),
        TrainEpisode("y", "g", 1.0, call_rewards={"y1": 2.0}),
    ]
    made = [calls("", "", "", name="x"), calls("", "", name="y")]

    def credited(discount: float) -> list[list[float]]:
        return call_advantages(episodes, made, "group_mean", discount, "process_supervision")

    # Without a discount: x2 has -2, x1 the same, x0 that and its own 2.
    assert credited(1.0) == [[0.0, -2.0, -2.0], [0.0, 0.0]]
    # With 0.5: x2 -2, x1 0.5 * -2 = -1, x0 2 + 0.5 * -1 = 1.5.
    assert credited(0.5) == [[1.5, -1.0, -2.0], [0.0, 0.0]]
    # With 0 a reward is about its own call alone.
    assert credited(0.0)[0] == [2.0, 0.0, -2.0]


@pytest.mark.parametrize("credit", ["return_to_go", "process_supervision"])
def test_call_rewards_come_on_top_of_the_episodes(credit: CallCredit) -> None:
    episodes = [
        TrainEpisode("x", "g", 1.0, call_rewards={"x0": 1.0}),
        TrainEpisode("y", "g", 0.0, call_rewards={"y0": 3.0}),
    ]
    made = [calls("", name="x"), calls("", name="y")]
    # 0.5 + (1 - 2) and -0.5 + (3 - 2)
    assert call_advantages(episodes, made, "group_mean", 1.0, credit) == [[-0.5], [0.5]]


def test_process_supervision_as_in_the_grpo_paper() -> None:
    # One output with step rewards 1 and 0, another with 0: mean 1/3, unbiased std sqrt(1/3).
    episodes = [
        TrainEpisode("x", "g", 0.0, call_rewards={"x0": 1.0, "x1": 0.0}),
        TrainEpisode("y", "g", 0.0, call_rewards={"y0": 0.0}),
    ]
    made = [calls("", "", name="x"), calls("", name="y")]
    std = math.sqrt(1 / 3) + 1e-4
    good, bad = (2 / 3) / std, (-1 / 3) / std
    got = call_advantages(episodes, made, "group_std", 1.0, "process_supervision")
    assert got[0] == pytest.approx([good + bad, bad])
    assert got[1] == pytest.approx([bad])


def test_agent_rewards_by_hand() -> None:
    # The planner's rewards 1 and 3 are compared with each other; the others have the episodes' 0
    # and 1.
    episodes = [
        TrainEpisode("x", "g", 0.0, agent_rewards={"planner": 1.0}),
        TrainEpisode("y", "g", 1.0, agent_rewards={"planner": 3.0}),
    ]
    made = [calls("planner", "worker", name="x"), calls("worker", "planner", name="y")]
    assert call_advantages(episodes, made, "group_mean") == [[-1.0, -0.5], [0.5, 1.0]]


def test_an_agent_that_only_one_episode_rewards_has_nothing_to_compare_with() -> None:
    episodes = [
        TrainEpisode("x", "g", 0.0, agent_rewards={"planner": 5.0}),
        TrainEpisode("y", "g", 1.0),
    ]
    made = [calls("planner", name="x"), calls("planner", name="y")]
    assert call_advantages(episodes, made, "group_mean") == [[0.0], [0.5]]


def train_calls() -> list[TrainCall]:
    """Two calls of 1 and 3 tokens in an episode, one of 4 in another, and one without tokens."""

    def call(episode: int, size: int) -> TrainCall:
        return TrainCall(f"{episode}-{size}", episode, 1.0, 1.0, [-1.0] * size, [0] * size)

    return [call(0, 1), call(0, 3), call(1, 4), call(1, 0)]


def test_weights_by_hand() -> None:
    made = train_calls()
    assert token_weights(made, "token_mean") == [1 / 8, 1 / 8, 1 / 8, 0.0]
    assert token_weights(made, "call_mean") == [1 / 3, 1 / 9, 1 / 12, 0.0]
    assert token_weights(made, "episode_mean") == [1 / 8, 1 / 8, 1 / 8, 0.0]
    assert token_weights(made[:2] + made[3:], "episode_mean") == [1 / 4, 1 / 4, 0.0]
    assert token_weights([made[0], made[2]], "episode_mean") == [1 / 2, 1 / 8]
    assert token_weights(made, "episode_sum") == [1 / 2, 1 / 2, 1 / 2, 0.0]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=8))
def test_means_have_weights_that_add_up_to_one(shape: list[tuple[int, int]]) -> None:
    made = [TrainCall("c", e, 1.0, 1.0, [-1.0] * n, [0] * n) for e, n in shape]
    for aggregation in ("token_mean", "call_mean", "episode_mean"):
        weights = token_weights(made, aggregation)
        total = sum(w * len(c.logprobs) for w, c in zip(weights, made, strict=True))
        assert total == pytest.approx(1.0 if any(n for _, n in shape) else 0.0)


def train_call(episode: int, tokens: int, advantage: float, agent: str = "") -> TrainCall:
    return TrainCall("c", episode, advantage, 1.0, [-1.0] * tokens, [0] * tokens, agent)


def test_balanced_by_hand_is_relative_to_the_mean_weighed_by_length() -> None:
    episodes = [TrainEpisode("e", "g", reward) for reward in (1.0, 0.0)]
    # A success of one token and a failure of three: the mean over tokens is 0.25.
    found = balanced([train_call(0, 1, 0.5), train_call(1, 3, -0.5)], episodes, "token_mean")
    assert [call.advantage for call in found] == [0.75, -0.25]
    # Each episode weighs the same already.
    kept = balanced([train_call(0, 1, 0.5), train_call(1, 3, -0.5)], episodes, "episode_mean")
    assert [call.advantage for call in kept] == [0.5, -0.5]


def test_an_agent_with_rewards_of_its_own_is_balanced_by_itself() -> None:
    episodes = [TrainEpisode("e", "g", 0.0, agent_rewards={"a": r}) for r in (1.0, 0.0)]
    calls = [train_call(0, 1, 0.5, "a"), train_call(1, 3, -0.5, "a"), train_call(1, 5, 0.0, "b")]
    assert [c.advantage for c in balanced(calls, episodes, "token_mean")] == [0.75, -0.25, 0.0]


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 9), st.floats(-10, 10)), min_size=1, max_size=12
    ),
    st.sampled_from(["token_mean", "call_mean", "episode_mean", "episode_sum"]),
)
def test_balanced_advantages_sum_to_zero_in_every_group_as_the_loss_weighs_them(
    made: list[tuple[int, int, float]], aggregation: Aggregation
) -> None:
    episodes = [TrainEpisode(f"e{i}", "gh"[i % 2], 0.0) for i in range(4)]
    calls = [train_call(episode, tokens, advantage) for episode, tokens, advantage in made]
    found = balanced(calls, episodes, aggregation)
    weights = token_weights(calls, aggregation)
    for group in "gh":
        total = sum(
            weight * len(call.logprobs) * call.advantage
            for call, weight in zip(found, weights, strict=True)
            if episodes[call.episode].group == group
        )
        assert total == pytest.approx(0, abs=1e-9)


def test_a_group_with_nothing_to_learn_stays_at_exactly_zero() -> None:
    episodes = [TrainEpisode("e", "g", 0.1) for _ in range(3)]
    calls = [train_call(i, 1 + i, 0.0) for i in range(3)]
    assert [call.advantage for call in balanced(calls, episodes, "token_mean")] == [0.0] * 3
