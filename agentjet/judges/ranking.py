"""A judge that asks a model which results of a task are better, for group rewards."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Sequence
from typing import Any, Literal

from agentjet.judges.model import JudgingModel, ModelJudgeSettings, Query
from agentjet.judges.rubric import in_thread


class RankingJudgeSettings(ModelJudgeSettings):
    """:param question: what makes a result better.

    :param compare: ``list`` asks for an order of all results at once, ``pairs`` about each pair of
        results: many more requests, which are easier to answer.
    """

    question: str = "Which result solves the task better?"
    compare: Literal["list", "pairs"] = "list"


class RankingJudge:
    """Rewards the results of a task by their place among each other, as a model orders them.

    The worst has 0 and the best 1. Models prefer what they read first or last, so each vote asks
    twice, with the results in reverse order, and the mean counts. Equal results have the same
    reward, and a result without others has 0.5. Use it as ``trainable(group_reward=judge)``.
    """

    def __init__(self, settings: RankingJudgeSettings) -> None:
        self.settings = settings
        self.model = JudgingModel(settings)

    def __call__(self, task: Any, results: Sequence[Any]) -> Any:
        """Return the rewards, or an awaitable of them if an event loop is running.

        :raises JudgeFailedError: the model gave no verdict.
        """
        return in_thread(self.judge, task, results)

    def judge(self, task: Any, results: Sequence[Any]) -> list[float]:
        """Return the reward of each result; blocks until the model has answered.

        :raises JudgeFailedError: the model gave no verdict.
        """
        texts = [str(result) for result in results]
        different = list(dict.fromkeys(texts))
        if len(different) < 2:
            return [0.5] * len(texts)
        scores: dict[str, list[float]] = {text: [] for text in different}
        for vote in range(self.settings.votes):
            if self.settings.compare == "list":
                # Shuffled by their content, so that the order of episodes does not matter.
                order = sorted(different)
                random.Random(vote).shuffle(order)  # noqa: S311
                groups = [order]
            else:
                groups = [list(pair) for pair in itertools.combinations(sorted(different), 2)]
            for group in groups:
                for shown in (group, group[::-1]):
                    for place, text in enumerate(self._order(task, shown, vote)):
                        scores[text].append(1 - place / (len(shown) - 1))
        means = {text: statistics.fmean(points) for text, points in scores.items()}
        return [means[text] for text in texts]

    def _order(self, task: Any, shown: Sequence[str], vote: int) -> list[str]:
        """Return results from the best to the worst."""
        names = [f"result {number}" for number in range(1, len(shown) + 1)]

        def read(verdict: Any) -> list[str]:
            order = [str(name) for name in verdict["order"]]
            if sorted(order) != sorted(names):
                raise ValueError("the order does not have each result once")
            return [shown[names.index(name)] for name in order]

        query = Query(
            instructions=(
                f"You compare results of the same task. {self.settings.question} First give your "
                "reason in a sentence or two, then the names of all results in order, the best "
                "first."
            ),
            material={"task": task, **dict(zip(names, shown, strict=True))},
            schema={
                "type": "object",
                "properties": {
                    "reason": {"type": "string"},
                    "order": {"type": "array", "items": {"type": "string", "enum": names}},
                },
                "required": ["reason", "order"],
                "additionalProperties": False,
            },
            vote=vote,
        )
        return self.model.verdict(query, read)
