"""Conformance tests for judges. Subclass `JudgeSuite` in a test module."""

from __future__ import annotations

import asyncio
import copy
import inspect
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest

from agentjet import EpisodeOutcome
from ajet_core.interfaces import Judge
from ajet_testing.conformance import ConformanceSuite

__all__ = ["UNUSABLE", "JudgeSuite"]

UNUSABLE = ("", " \n", "I would rather not say.", "\x00\ufffd", "-", "1" * 10_000)
"""Results that no task expects."""


class JudgeSuite(ConformanceSuite):
    """Conformance tests of a `Judge`; a subclass creates one.

    :cvar examples: tasks, results and their rewards, of which two differ.
    """

    examples: ClassVar[Sequence[tuple[Any, Any, float]]] = ()

    def make_judge(self) -> Judge:
        """Create a judge."""
        raise NotImplementedError

    def test_examples_have_their_rewards(self) -> None:
        judge = self.make_judge()
        given = [self._judged(judge, task, result) for task, result, _ in self.examples]
        assert given == [pytest.approx(reward) for _, _, reward in self.examples]
        assert len({reward for _, _, reward in self.examples}) > 1, "two examples must differ"

    def test_the_same_result_has_the_same_reward(self) -> None:
        judge = self.make_judge()
        first = [self._judged(judge, *example[:2]) for example in self.examples]
        for again in (judge, self.make_judge()):
            others = [self._judged(again, *example[:2]) for example in reversed(self.examples)]
            assert others == first[::-1]

    def test_episodes_at_the_same_time_do_not_disturb_each_other(self) -> None:
        judge = self.make_judge()
        examples = [*self.examples] * 8
        with ThreadPoolExecutor(8) as threads:
            given = threads.map(lambda example: self._judged(judge, *example[:2]), examples)
            assert list(given) == [pytest.approx(reward) for _, _, reward in examples]

    def test_tasks_stay_as_they_are(self) -> None:
        judge = self.make_judge()
        for task, result, _ in self.examples:
            given = copy.deepcopy(task)
            self._reward(judge, given, result)
            assert given == task

    @pytest.mark.parametrize("result", UNUSABLE, ids=lambda result: repr(result[:12]))
    def test_unusable_results_have_rewards_that_are_no_better(self, result: str) -> None:
        """An exception would abort the episode, so that nothing would be learned from it."""
        judge = self.make_judge()
        best = max(reward for _, _, reward in self.examples)
        for task, _, _ in self.examples:
            assert self._judged(judge, task, result) < best

    def _judged(self, judge: Judge, task: Any, result: Any) -> float:
        # A judge that changes its tasks must not change those of other tests.
        return self._reward(judge, copy.deepcopy(task), result)

    def _reward(self, judge: Judge, task: Any, result: Any) -> float:
        given = judge(task, result)
        if inspect.isawaitable(given):
            given = asyncio.run(_awaited(given))
        reward = EpisodeOutcome.of(given).reward
        assert math.isfinite(reward)
        return reward


async def _awaited(given: Any) -> Any:
    return await given
