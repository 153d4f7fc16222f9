import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_core.timeline import AdvantageMethod, TrainEpisode, episode_advantages, has_signal

METHODS: list[AdvantageMethod] = ["group_std", "group_mean", "leave_one_out"]


def episodes(**groups: list[float]) -> list[TrainEpisode]:
    return [TrainEpisode(f"{g}{i}", g, r) for g, rs in groups.items() for i, r in enumerate(rs)]


def test_group_std_by_hand() -> None:
    # mean 2, squared deviations 1 + 1 + 4 = 6... over n - 1 = 2: std sqrt(3)
    got = episode_advantages(episodes(a=[1.0, 1.0, 4.0]), "group_std")
    std = math.sqrt(3.0) + 1e-4
    assert got == pytest.approx([-1 / std, -1 / std, 2 / std], rel=1e-12)


def test_group_mean_by_hand() -> None:
    assert episode_advantages(episodes(a=[1.0, 1.0, 4.0]), "group_mean") == [-1.0, -1.0, 2.0]


def test_leave_one_out_by_hand() -> None:
    # 1 - (1 + 4) / 2, twice, and 4 - (1 + 1) / 2
    assert episode_advantages(episodes(a=[1.0, 1.0, 4.0]), "leave_one_out") == [-1.5, -1.5, 3.0]


def test_groups_are_compared_with_themselves_in_any_order() -> None:
    mixed = episodes(a=[0.0, 1.0], b=[10.0, 20.0])
    order = [2, 0, 3, 1]
    got = episode_advantages([mixed[i] for i in order], "group_mean")
    assert got == [-5.0, -0.5, 5.0, 0.5]


@pytest.mark.parametrize("method", METHODS)
def test_a_group_of_one_has_no_advantage(method: AdvantageMethod) -> None:
    assert episode_advantages(episodes(a=[3.0]), method) == [0.0]


@pytest.mark.parametrize("method", METHODS)
def test_equal_rewards_give_exactly_zero(method: AdvantageMethod) -> None:
    # The mean of these is not 0.1 in floating point.
    assert episode_advantages(episodes(a=[0.1] * 3, b=[0.7] * 7), method) == [0.0] * 10


@pytest.mark.parametrize("method", METHODS)
def test_nothing_gives_nothing(method: AdvantageMethod) -> None:
    assert episode_advantages([], method) == []


REWARDS = st.lists(st.floats(-100, 100), min_size=1, max_size=8)


@given(REWARDS, st.sampled_from(METHODS))
def test_advantages_sum_to_zero_and_keep_the_order(
    rewards: list[float], method: AdvantageMethod
) -> None:
    got = episode_advantages(episodes(a=rewards), method)
    assert sum(got) == pytest.approx(0.0, abs=1e-6)
    for reward, advantage in zip(rewards, got, strict=True):
        for other, other_advantage in zip(rewards, got, strict=True):
            assert reward <= other or advantage >= other_advantage


@given(REWARDS, REWARDS)
def test_signal_is_where_a_group_differs(first: list[float], second: list[float]) -> None:
    differs = len(set(first)) > 1 or len(set(second)) > 1
    assert has_signal(episodes(a=first, b=second)) == differs


def test_groups_that_differ_from_each_other_only_have_no_signal() -> None:
    assert not has_signal(episodes(a=[1.0, 1.0], b=[0.0, 0.0]))
