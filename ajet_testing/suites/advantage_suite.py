"""Conformance tests for advantage estimators. Subclass `AdvantageSuite` in a test module."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from ajet_core.interfaces import AdvantageEstimator
from ajet_core.timeline import Call, TrainEpisode
from ajet_testing.conformance import ConformanceSuite
from ajet_testing.suites.samples import conversation

__all__ = ["AdvantageSuite", "Batch", "batch_of"]

Batch = tuple[list[TrainEpisode], list[list[Call]]]


def batch_of(rewards: Sequence[float], turns: Sequence[int], tasks: int = 1) -> Batch:
    """Create episodes with these rewards and numbers of calls, dealt to tasks in turn.

    The last call of each episode and its agent have separate rewards.
    """
    episodes, calls = [], []
    for number, (reward, count) in enumerate(zip(rewards, turns, strict=True)):
        its_calls = conversation(count, episode_id=f"e{number}") if count else []
        last = {its_calls[-1].call_id: -reward} if its_calls else {}
        agents = {its_calls[-1].agent: 2 * reward} if its_calls else {}
        group = f"task-{number % tasks}"
        episodes.append(TrainEpisode(f"e{number}", group, reward, "", last, agents))
        calls.append(its_calls)
    return episodes, calls


class AdvantageSuite(ConformanceSuite):
    """Conformance tests of an `AdvantageEstimator`; a subclass creates one.

    :cvar separates: whether a better episode of a task always has a larger advantage. Estimators
        for the best of several attempts may give equal ones.
    """

    separates: ClassVar[bool] = True

    def make_estimator(self) -> AdvantageEstimator:
        """Create an estimator."""
        raise NotImplementedError

    @pytest.mark.parametrize(
        ("rewards", "turns"),
        [
            ([], []),
            ([1.0], [1]),
            ([0.0, 1.0, 0.5, 0.5], [1, 3, 2, 3]),
            ([1.0, 1.0, 1.0], [2, 2, 2]),
            ([0.0, 1.0], [0, 2]),
            ([1e6, -1e6, 0.0, 1e-12], [1, 1, 2, 1]),
        ],
        ids=["no episode", "one episode", "one task", "equal rewards", "no call", "limits"],
    )
    @pytest.mark.parametrize("tasks", [1, 2])
    def test_every_call_has_a_finite_advantage(
        self, rewards: Sequence[float], turns: Sequence[int], tasks: int
    ) -> None:
        episodes, calls = batch_of(rewards, turns, tasks)
        advantages = self.make_estimator().estimate(episodes, calls)
        assert len(advantages) == len(episodes)
        assert [len(given) for given in advantages] == list(turns)
        assert all(math.isfinite(value) for given in advantages for value in given)

    def test_the_same_batch_has_the_same_advantages(self) -> None:
        batch = batch_of([0.0, 1.0, 0.5, 1.0], [2, 1, 3, 2], 2)
        estimator = self.make_estimator()
        first = [list(given) for given in estimator.estimate(*batch)]
        estimator.estimate(*batch_of([5.0, -5.0], [1, 1]))
        assert [list(given) for given in estimator.estimate(*batch)] == first
        assert [list(given) for given in self.make_estimator().estimate(*batch)] == first

    def test_another_process_gives_the_same_advantages(
        self, other_process: Callable[..., Any]
    ) -> None:
        """A server that is started again is one."""
        assert other_process("_estimated") == self._estimated()

    def test_the_order_of_episodes_does_not_matter(self) -> None:
        """Rollouts of a task are not next to each other, and tasks may have different numbers."""
        rewards, turns = [0.0, 1.0, 0.5, 3.0, 1.0, 0.25], [2, 1, 3, 2, 1, 2]
        episodes, calls = batch_of(rewards, turns, 2)
        groups = ["b", "a", "b", "a", "b", "b"]
        episodes = [replace(one, group=group) for one, group in zip(episodes, groups, strict=True)]
        given = self.make_estimator().estimate(episodes, calls)
        for order in ([1, 3, 0, 2, 4, 5], [5, 4, 3, 2, 1, 0], [0, 1, 3, 4, 2, 5]):
            again = self.make_estimator().estimate(
                [episodes[i] for i in order], [calls[i] for i in order]
            )
            for place, i in enumerate(order):
                assert again[place] == pytest.approx(given[i], rel=1e-6, abs=1e-9)

    def test_the_batch_is_left_as_it_is(self) -> None:
        batch = batch_of([0.0, 1.0, 0.5], [2, 1, 3])
        before = copy.deepcopy(batch)
        self.make_estimator().estimate(*batch)
        assert batch == before

    def test_a_better_episode_of_a_task_has_a_larger_advantage(self) -> None:
        """In each task of a batch, with one call and with several."""
        episodes, calls = batch_of([0.0, 2.0, 1.0, 3.0], [1, 2, 1, 2], 2)
        plain = [TrainEpisode(e.episode_id, e.group, e.reward) for e in episodes]
        given = self.make_estimator().estimate(plain, calls)
        for worse, better in ((0, 2), (1, 3)):
            worst, best = max(given[worse]), min(given[better])
            assert worst < best or (not self.separates and worst == best)

    def test_tasks_are_estimated_apart(self) -> None:
        """The advantages of a task do not depend on the others in the batch."""
        episodes, calls = batch_of([0.0, 2.0, 1.0, 3.0, 0.5, 9.0], [1, 2, 1, 2, 2, 1], 2)
        together = self.make_estimator().estimate(episodes, calls)
        for task in (0, 1):
            alone = self.make_estimator().estimate(episodes[task::2], calls[task::2])
            for given, expected in zip(together[task::2], alone, strict=True):
                assert list(given) == pytest.approx(list(expected))

    def _estimated(self) -> list[list[float]]:
        batch = batch_of([0.0, 1.0, 0.5, 1.0], [2, 1, 3, 2], 2)
        return [list(given) for given in self.make_estimator().estimate(*batch)]
