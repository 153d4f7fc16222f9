"""A judge that asks a model for its verdict on each criterion of a rubric."""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agentjet.judges.model import JudgingModel, ModelJudgeSettings, Query
from ajet_core.interfaces import EpisodeOutcome, Judge

LONGEST_REASON = 500


class ChoiceCriterion(BaseModel):
    """:param question: what the model decides, such as "Is the answer polite?".

    :param choices: the possible verdicts, from the worst to the best, with their scores.
    :param weight: of this criterion in the reward.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    question: Annotated[str, Field(min_length=1)]
    choices: Annotated[Mapping[str, float], Field(min_length=2)] = {"no": 0.0, "yes": 1.0}
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0


class RubricJudgeSettings(ModelJudgeSettings):
    """:param criteria: by name.

    :param instructions: further instructions for the model.
    """

    criteria: Annotated[Mapping[str, ChoiceCriterion], Field(min_length=1)]
    instructions: str = ""

    @model_validator(mode="after")
    def _finite(self) -> RubricJudgeSettings:
        scores = [score for one in self.criteria.values() for score in one.choices.values()]
        if not all(abs(score) < float("inf") for score in scores):
            raise ValueError("the scores of choices must be finite")
        return self


class RubricJudge(Judge[RubricJudgeSettings]):
    """The weighted mean of a model's verdicts on criteria, each from a fixed set of choices.

    The model gives its reason before each choice. Components of the outcome are the score of each
    criterion and ``agreement``, the share of votes for the most frequent choice (mean over
    criteria); the reasons of the first vote are in its metadata, as ``reason_NAME``.
    """

    def __init__(self, settings: RubricJudgeSettings) -> None:
        super().__init__(settings)
        self.model = JudgingModel(settings)

    def __call__(self, task: Any, result: Any) -> Any:
        """Return the outcome, or an awaitable of it if an event loop is running.

        :raises JudgeFailedError: the model gave no verdict.
        """
        return in_thread(self.judge, task, result)

    def judge(self, task: Any, result: Any) -> EpisodeOutcome:
        """Return the outcome; blocks until the model has answered.

        :raises JudgeFailedError: the model gave no verdict.
        """
        votes = [self._vote(task, result, vote) for vote in range(self.settings.votes)]
        scores: dict[str, float] = {}
        agreement = []
        for name, criterion in self.settings.criteria.items():
            choices = [vote[name][1] for vote in votes]
            scores[name] = statistics.fmean(criterion.choices[choice] for choice in choices)
            agreement.append(Counter(choices).most_common(1)[0][1] / len(choices))
        weights = [criterion.weight for criterion in self.settings.criteria.values()]
        return EpisodeOutcome(
            reward=statistics.fmean(scores.values(), weights),
            components={**scores, "agreement": statistics.fmean(agreement)},
            metadata={f"reason_{name}": reason for name, (reason, _) in votes[0].items()},
        )

    def _vote(self, task: Any, result: Any, vote: int) -> dict[str, tuple[str, str]]:
        """Return the reason and the choice for each criterion."""
        criteria = self.settings.criteria
        questions = "\n".join(f"- {name}: {one.question}" for name, one in criteria.items())

        def read(verdict: Any) -> dict[str, tuple[str, str]]:
            read: dict[str, tuple[str, str]] = {}
            for name, criterion in criteria.items():
                choice = str(verdict[name]["choice"])
                if choice not in criterion.choices:
                    raise ValueError(f"{choice!r} is not a choice of the criterion {name!r}")
                read[name] = (str(verdict[name].get("reason", ""))[:LONGEST_REASON], choice)
            return read

        query = Query(
            instructions=(
                "You judge the result of a task by criteria. For each of them, first give your "
                f"reason in a sentence or two, then your choice.\n{questions}\n"
                f"{self.settings.instructions}"
            ),
            material={"task": task, "result": result},
            schema={
                "type": "object",
                "properties": {
                    name: {
                        "type": "object",
                        "properties": {
                            "reason": {"type": "string"},
                            "choice": {"type": "string", "enum": list(criterion.choices)},
                        },
                        "required": ["reason", "choice"],
                        "additionalProperties": False,
                    }
                    for name, criterion in criteria.items()
                },
                "required": list(criteria),
                "additionalProperties": False,
            },
            vote=vote,
        )
        return self.model.verdict(query, read)


def in_thread(function: Any, *args: Any) -> Any:
    """Call a function that blocks; in a thread, and return an awaitable, if a loop is running."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        return asyncio.to_thread(function, *args)
    return function(*args)
