"""Mutations of the advantage estimators."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from typing import Any

from ajet_core.timeline import Call, TrainEpisode
from ajet_training.advantages import GroupAdvantages
from tests.mutants.planting import Mutants, around

Calls = Sequence[Sequence[Call]]
Advantages = list[list[float]]

FILE = "tests/server/test_advantages.py"
std = Mutants("advantage", f"{FILE}::TestGroupStd")
mean = Mutants("advantage", f"{FILE}::TestGroupMean")
ALL = (std, mean)


def estimates(by: Any) -> None:
    """Replace the estimate by a function of the original one, the episodes and the calls."""

    def estimate(original: Any, self: Any, episodes: Any, calls: Any) -> Any:
        return by(lambda e, c: original(self, e, c), episodes, calls)

    around(GroupAdvantages, "estimate", estimate)


def shared(values: Sequence[float], calls: Calls) -> Advantages:
    """Give each call the value of its episode."""
    return [[value] * len(its) for value, its in zip(values, calls, strict=True)]


@std
def groups_are_slices_of_the_batch() -> None:
    """As estimators do that reshape rewards to (tasks, rollouts)."""

    def by(_: Any, episodes: Sequence[TrainEpisode], calls: Calls) -> Advantages:
        tasks = len({episode.group for episode in episodes}) or 1
        size = max(1, math.ceil(len(episodes) / tasks))
        values: list[float] = []
        for start in range(0, len(episodes), size):
            rewards = [episode.reward for episode in episodes[start : start + size]]
            values += [reward - sum(rewards) / len(rewards) for reward in rewards]
        return shared(values, calls)

    estimates(by)


@std
def equal_rewards_are_divided_by_nothing() -> None:
    def by(_: Any, episodes: Sequence[TrainEpisode], calls: Calls) -> Advantages:
        rewards = [episode.reward for episode in episodes]
        middle = sum(rewards) / max(1, len(rewards))
        spread = math.sqrt(sum((r - middle) ** 2 for r in rewards))
        values = [(r - middle) / spread if spread else math.nan for r in rewards]
        return shared(values, calls)

    estimates(by)


@mean
def a_single_episode_has_no_mean() -> None:
    def by(_: Any, episodes: Sequence[TrainEpisode], calls: Calls) -> Advantages:
        total = sum(episode.reward for episode in episodes)
        others = len(episodes) - 1
        return shared([e.reward - (total - e.reward) / others for e in episodes], calls)

    estimates(by)


@mean
def an_empty_batch_is_divided_by() -> None:
    def by(original: Any, episodes: Sequence[TrainEpisode], calls: Calls) -> Any:
        assert sum(map(len, calls)) / len(episodes) >= 0
        return original(episodes, calls)

    estimates(by)


@std
def the_sign_is_wrong() -> None:
    estimates(lambda original, e, c: [[-v for v in its] for its in original(e, c)])


@std
def nothing_is_better_than_anything() -> None:
    estimates(lambda original, e, c: [[0.0] * len(its) for its in original(e, c)])


@std
def episodes_have_one_advantage() -> None:
    estimates(lambda original, e, c: [its[:1] for its in original(e, c)])


@std
def episodes_without_calls_are_left_out() -> None:
    estimates(lambda original, e, c: [its for its in original(e, c) if its])


@std
def advantages_are_those_of_all_calls_in_a_row() -> None:
    estimates(lambda original, e, c: list(itertools.chain(*original(e, c))))


@mean
def the_baseline_moves_with_each_batch() -> None:
    state = {"baseline": 0.0}

    def by(_: Any, episodes: Sequence[TrainEpisode], calls: Calls) -> Advantages:
        values = [episode.reward - state["baseline"] for episode in episodes]
        for episode in episodes:
            state["baseline"] += 0.1 * (episode.reward - state["baseline"])
        return shared(values, calls)

    estimates(by)


@std
def advantages_have_noise() -> None:
    estimates(
        lambda original, e, c: [[v + random.gauss(0, 1e-6) for v in i] for i in original(e, c)]
    )


@std
def advantages_depend_on_the_process() -> None:
    """Ties are decided by the hashes of texts, which differ after a restart."""

    def by(original: Any, episodes: Sequence[TrainEpisode], calls: Calls) -> Advantages:
        return [
            [value + hash(episode.episode_id) % 1000 * 1e-6 for value in its]
            for episode, its in zip(episodes, original(episodes, calls), strict=True)
        ]

    estimates(by)


@std
def calls_are_taken_out_of_the_batch() -> None:
    def by(original: Any, episodes: Sequence[TrainEpisode], calls: Any) -> Any:
        found = original(episodes, calls)
        for its in calls:
            while its:
                its.pop()
        return found

    estimates(by)


@std
def rewards_of_agents_are_used_up() -> None:
    def by(original: Any, episodes: Any, calls: Calls) -> Any:
        found = original(episodes, calls)
        for episode in episodes:
            episode.agent_rewards.clear()
        return found

    estimates(by)


@std
def every_episode_has_rewards_of_the_same_agents() -> None:
    def by(original: Any, episodes: Sequence[TrainEpisode], calls: Calls) -> Any:
        agents = list(episodes[0].agent_rewards) if episodes else []
        for episode in episodes:
            for agent in agents:
                assert episode.agent_rewards[agent] is not None
        return original(episodes, calls)

    estimates(by)


@std
def every_episode_has_as_many_calls() -> None:
    def by(original: Any, episodes: Sequence[TrainEpisode], calls: Calls) -> Any:
        list(zip(*calls, strict=True))
        return original(episodes, calls)

    estimates(by)


@mean
def large_rewards_overflow() -> None:
    estimates(lambda original, e, c: [[math.exp(v) - 1 for v in its] for its in original(e, c)])


@std
def advantages_come_once() -> None:
    estimates(lambda original, e, c: iter(original(e, c)))


@std
def advantages_are_those_of_the_next_episode() -> None:
    def by(original: Any, episodes: Sequence[TrainEpisode], calls: Calls) -> Any:
        found = original(episodes, calls)
        firsts = [its[0] if its else 0.0 for its in found]
        return shared([*firsts[1:], *firsts[:1]], calls)

    estimates(by)


@std
def only_the_first_task_is_estimated() -> None:
    def by(original: Any, episodes: Sequence[TrainEpisode], calls: Calls) -> Any:
        found = original(episodes, calls)
        return [
            its if episode.group == episodes[0].group else [0.0] * len(its)
            for episode, its in zip(episodes, found, strict=True)
        ]

    estimates(by)
