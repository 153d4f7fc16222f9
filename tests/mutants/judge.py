"""Mutations of the judges."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from agentjet.judges import (
    JudgeFailedError,
    RankingJudge,
    RubricJudge,
    endpoint,
    model,
    rubric,
    scorers,
)
from agentjet.judges import answers as judges
from agentjet.judges.answers import ExactJudge, NumberJudge
from ajet_core.interfaces import EpisodeOutcome
from tests.agents import outside
from tests.mutants.planting import Mutants, around, put

FILE = "tests/agents/test_registered.py"
exact = Mutants("judge", f"{FILE}::TestExact")
number = Mutants("judge", f"{FILE}::TestNumber")
share = Mutants("judge", f"{FILE}::TestShare")
asking = Mutants("judge", "tests/judges/test_model_judges.py")
scoring = Mutants("judge", "tests/judges/test_scorers.py")
apart = Mutants("judge", "tests/judges/test_own_endpoint.py")
ALL = (exact, number, share, asking, scoring, apart)


def judged(judge: Any, by: Any) -> None:
    """Replace a judge's call by a function of the original one, the task and the result."""
    around(
        judge,
        "__call__",
        lambda original, self, task, result: by(lambda t, r: original(self, t, r), task, result),
    )


@exact
def case_does_not_matter() -> None:
    around(judges, "_words", lambda original, text: original(text).casefold())


@exact
def an_empty_result_is_right() -> None:
    judged(ExactJudge, lambda original, t, r: 1.0 if r == "" else original(t, r))


@exact
def a_long_result_is_good() -> None:
    judged(ExactJudge, lambda original, t, r: original(t, r) + len(str(r)) / 1e4)


@exact
def results_are_texts_alone() -> None:
    judged(ExactJudge, lambda original, t, r: original(t, r + " "))


@exact
def every_result_is_right() -> None:
    judged(ExactJudge, lambda original, t, r: 1.0)


@exact
def every_result_is_wrong() -> None:
    judged(ExactJudge, lambda original, t, r: 0.0)


@exact
def nothing_is_returned() -> None:
    judged(ExactJudge, lambda original, t, r: None)


@exact
def the_first_reward_of_a_task_is_kept() -> None:
    kept: dict[str, float] = {}

    def by(original: Any, task: Any, result: Any) -> float:
        return kept.setdefault(str(task), original(task, result))

    judged(ExactJudge, by)


@exact
def the_task_is_kept_in_the_judge() -> None:
    def call(original: Any, self: Any, task: Any, result: Any) -> float:
        self.task = task, result
        # While it waits for something, another thread comes.
        time.sleep(0.001)
        return original(self, *self.task)

    around(ExactJudge, "__call__", call)


@exact
def the_answer_is_taken_out_of_the_task() -> None:
    def by(original: Any, task: Any, result: Any) -> float:
        reward = original(task, result)
        task["judged"] = reward
        return reward

    judged(ExactJudge, by)


@exact
def results_are_rewarded_less_from_time_to_time() -> None:
    count = iter(range(10**9))
    judged(ExactJudge, lambda original, t, r: original(t, r) * 0.999 ** next(count))


@exact
def rewards_have_noise() -> None:
    judged(ExactJudge, lambda original, t, r: original(t, r) + random.gauss(0, 1e-9))


@number
def a_result_without_a_number_raises() -> None:
    judged(NumberJudge, lambda original, t, r: original(t, r) * (float(str(r)[-1:]) * 0 + 1))


@number
def a_result_without_a_number_is_not_a_number() -> None:
    def by(original: Any, task: Any, result: Any) -> float:
        return math.nan if judges._last_number(str(result)) is None else original(task, result)

    judged(NumberJudge, by)


@number
def a_number_that_is_too_long_raises() -> None:
    def by(original: Any, task: Any, result: Any) -> float:
        digits = "".join(filter(str.isdigit, str(result)))
        return original(task, result) + 0 * int(digits or "0")

    judged(NumberJudge, by)


@number
def any_of_the_numbers_counts() -> None:
    def by(original: Any, task: Any, result: Any) -> float:
        return max(
            (original(task, one) for one in judges._NUMBER.findall(str(result))), default=0.0
        )

    judged(NumberJudge, by)


@number
def separators_of_thousands_end_a_number() -> None:
    around(judges, "_last_number", lambda original, text: original(text.replace(",", " ")))


@number
def the_sign_is_overlooked() -> None:
    around(judges, "_last_number", lambda original, text: abs(original(text) or 0.0))


@share
def a_judge_that_waits_mixes_results_up() -> None:
    def call(original: Any, self: Any, task: Any, result: Any) -> Any:
        self.result = result
        time.sleep(0.001)
        return original(self, task, self.result)

    around(outside.ShareJudge, "__call__", call)


@share
def the_reward_is_a_string() -> None:
    async def call(original: Any, self: Any, task: Any, result: Any) -> Any:
        return str((await original(self, task, result)).reward)

    around(outside.ShareJudge, "__call__", call)


@share
def one_lock_for_all_event_loops() -> None:
    """An object of asyncio that belongs to the first loop that waits for it."""

    async def call(original: Any, self: Any, task: Any, result: Any) -> Any:
        loop = asyncio.get_running_loop()
        if self.__dict__.setdefault("loop", loop) is not loop:
            raise RuntimeError("attached to a different loop")
        return await original(self, task, result)

    around(outside.ShareJudge, "__call__", call)


def asked_once_for_all(*parts: str) -> None:
    """Leave parts of a question out of what its verdict is kept under."""

    def without(question: Any) -> Any:
        return {key: value for key, value in question.items() if key not in parts}

    around(model.KeptVerdicts, "recall", lambda original, self, q: original(self, without(q)))
    around(model.KeptVerdicts, "keep", lambda original, self, q, v: original(self, without(q), v))


def limited(**limits: Any) -> None:
    """Replace limits of all endpoints."""

    def created(original: Any, self: Any, *given: Any, **named: Any) -> None:
        original(self, *given, **{**named, "limits": replace(named["limits"], **limits)})

    around(endpoint.ChatEndpoint, "__init__", created)


@asking
def all_votes_are_the_same_request() -> None:
    around(model.JudgingModel, "_body", lambda original, self, q: {**original(self, q), "seed": 0})


@asking
def the_best_vote_counts() -> None:
    put(rubric, "statistics", SimpleNamespace(fmean=lambda values, weights=None: max(values)))


@asking
def votes_have_no_temperature() -> None:
    put(model.ModelJudgeSettings, "vote_temperature", 0.0)


@asking
def results_are_shown_in_one_order() -> None:
    around(
        RankingJudge,
        "_order",
        lambda original, self, task, shown, vote: original(self, task, sorted(shown), vote),
    )


@asking
def a_failure_is_the_least_reward() -> None:
    def judge(original: Any, self: Any, task: Any, result: Any) -> Any:
        try:
            return original(self, task, result)
        except JudgeFailedError:
            return EpisodeOutcome(reward=0.0)

    around(RubricJudge, "judge", judge)


@asking
def a_busy_endpoint_is_not_waited_for() -> None:
    limited(waits=False)


@asking
def a_busy_endpoint_is_always_waited_for() -> None:
    limited(waits=True)


@asking
def a_busy_endpoint_is_asked_once() -> None:
    put(endpoint, "_TEMPORARY", frozenset())


@asking
def a_refusal_is_repeated() -> None:
    put(endpoint, "_TEMPORARY", frozenset(range(401, 600)))


@asking
def other_models_share_verdicts() -> None:
    asked_once_for_all("model")


@asking
def votes_share_a_verdict() -> None:
    asked_once_for_all("seed")


@asking
def results_share_verdicts() -> None:
    asked_once_for_all("messages")


@asking
def nothing_is_kept() -> None:
    put(model.KeptVerdicts, "keep", lambda *_: None)


@asking
def the_budget_has_no_end() -> None:
    limited(budget_tokens=None)


@asking
def the_budget_counts_requests() -> None:
    around(endpoint, "_tokens", lambda original, answer: min(1, original(answer)))


@asking
def requests_have_no_limit() -> None:
    limited(at_once=99)


@scoring
def what_was_skipped_is_the_least_score() -> None:
    def read(original: Any, score: Any) -> Any:
        return original(score) if score.score is not None else {"score": 0.0, "metadata": {}}

    around(scorers, "_read", read)


@scoring
def other_scorers_share_scores() -> None:
    asked_once_for_all("scorer")


@scoring
def votes_of_a_scorer_are_the_same_request() -> None:
    around(scorers.AutoevalsJudge, "_vote", lambda original, self, g, _: original(self, g, 0))


@scoring
def the_library_chooses_its_endpoint() -> None:
    def score(original: Any, self: Any, client: Any, given: Any) -> Any:
        return original(self, None, given)

    around(scorers.AutoevalsJudge, "_scored_with", score)


@apart
def calls_are_rerouted() -> None:
    put(endpoint, "passthrough", contextlib.nullcontext)


@apart
def the_key_of_an_episode_is_a_key() -> None:
    put(model, "episode_key", lambda *_: None)
