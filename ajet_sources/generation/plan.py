"""What is generated, how much of it, and what became of it."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ajet_core.interfaces import ModelEndpoint
from ajet_sources.generation.documents import DocumentPart
from ajet_sources.generation.task_prompt import TaskPrompt
from ajet_sources.generation.tasks import WrittenTask, example_lines, request_body

Stop = Literal["requests", "count", "budget_calls", "budget_tokens", "failed"]
"""Why a generation ended: all requests were made, there are enough rows, a budget is spent, or an
endpoint failed."""


@dataclass(frozen=True, kw_only=True)
class SolveRate:
    """Which tasks are kept: those that a model solves now and then.

    :param endpoint: of the model that attempts the tasks.
    :param attempts: at each task.
    :param low: the lowest share of attempts that pass, of a task that is kept.
    :param high: the highest one.
    :param pass_reward: the reward from which an attempt passes; None is the greatest.
    """

    endpoint: ModelEndpoint
    attempts: int = 8
    low: float = 0.0
    high: float = 1.0
    pass_reward: float | None = None


@dataclass(frozen=True, kw_only=True)
class GenerationPlan:
    """What decides the rows: from the same plan and the same answers come the same rows.

    :param model: writes the tasks.
    :param parts: of documents, each of which is asked about in turn; or
    :param examples: of tasks. Each request shows `shots` of them, by its seed.
    :param tasks: most tasks that each request asks for.
    :param seed: of the first request; each of the others has the next one.
    :param temperature: None is the endpoint's.
    :param max_tokens: of an answer.
    :param near: as of `SeenTexts`.
    :param known: questions that no row may repeat, such as those of an evaluation.
    :param source: settings of the source ``rows`` with which the rows are trained.
    :param check: whether tasks with findings of `check_source` are left out.
    :param solve_rate: None keeps tasks of any difficulty.
    """

    model: str
    prompt: TaskPrompt
    parts: Sequence[DocumentPart] = ()
    examples: Sequence[WrittenTask] = ()
    shots: int = 4
    tasks: int = 4
    seed: int = 0
    temperature: float | None = None
    max_tokens: int = 4096
    near: float = 0.8
    known: Sequence[str] = ()
    source: Mapping[str, Any] = field(default_factory=dict)
    check: bool = True
    solve_rate: SolveRate | None = None

    def request(self, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return a request, and the provenance of its tasks.

        :param number: from 0.
        """
        seed = self.seed + number
        where: dict[str, Any]
        if self.parts:
            part = self.parts[number % len(self.parts)]
            material = part.text
            where = {
                "document": part.path,
                "document_sha256": part.sha256,
                "span": [part.start, part.end],
            }
        else:
            order = random.Random(seed)  # noqa: S311
            shown = order.sample(list(self.examples), min(self.shots, len(self.examples)))
            material = example_lines(shown)
            where = {"examples": [example.task_id for example in shown]}
        body = request_body(
            model=self.model,
            instructions=self.prompt.rendered(self.tasks),
            material=material,
            seed=seed,
            temperature=self.temperature,
            max_tokens=self.max_tokens,
        )
        whence = {"model": self.model, "seed": seed, "prompt_sha256": self.prompt.sha256, **where}
        return body, whence

    def facts(self) -> dict[str, Any]:
        """Return what identifies the plan, as JSON."""
        rate = self.solve_rate
        return {
            "model": self.model,
            "prompt": self.prompt.sha256,
            "documents": _digest([(part.sha256, part.start, part.end) for part in self.parts]),
            "examples": _digest([example.task_id for example in self.examples]),
            "shots": self.shots,
            "tasks": self.tasks,
            "seed": self.seed,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "near": self.near,
            "known": _digest(list(self.known)),
            "source": dict(self.source),
            "check": self.check,
            "solve_rate": None
            if rate is None
            else {
                "model": rate.endpoint.model,
                "sampling": dict(rate.endpoint.sampling),
                "attempts": rate.attempts,
                "low": rate.low,
                "high": rate.high,
                "pass_reward": rate.pass_reward,
            },
        }


@dataclass(frozen=True, kw_only=True)
class GenerationLimits:
    """How much is generated, and how fast.

    :param requests: for tasks, in all.
    :param count: of rows that are enough; None means no limit.
    :param budget_calls: answers after which no request is sent.
    :param budget_tokens: the same for their tokens, as the endpoint counts them. Requests under
        way are finished.
    :param concurrency: requests at once, and attempts at once.
    :param attempt_timeout: seconds of an attempt, or of a score, after which it has failed.
    :param attempt_retries: further attempts after one that failed.
    """

    requests: int
    count: int | None = None
    budget_calls: int | None = None
    budget_tokens: int | None = None
    concurrency: int = 8
    attempt_timeout: float | None = None
    attempt_retries: int = 1


@dataclass(kw_only=True)
class GenerationReport:
    """What became of the requests, from the first one on, also if they were made earlier.

    :param asked: answers to requests.
    :param recorded: those of them that were recorded before, and not paid for again.
    :param tokens: of all answers, as the endpoint counts them.
    :param parsed: tasks in the answers.
    :param malformed: things in the answers that cannot be read as tasks.
    :param duplicate: tasks with the same words as an earlier one, or as a known one.
    :param near_duplicate: tasks that are nearly like an earlier one.
    :param failed_check: tasks with a finding.
    :param findings: of the first five of them, one each.
    :param unmeasured: tasks of which an attempt failed; the same command attempts them again.
    :param too_hard: tasks that were solved too seldom.
    :param too_easy: tasks that were solved too often.
    :param rows: in the file.
    :param error: of the endpoint, if it ended the generation, or of the first failed attempt.
    """

    asked: int = 0
    recorded: int = 0
    tokens: int = 0
    parsed: int = 0
    malformed: int = 0
    duplicate: int = 0
    near_duplicate: int = 0
    failed_check: int = 0
    findings: list[str] = field(default_factory=list)
    unmeasured: int = 0
    too_hard: int = 0
    too_easy: int = 0
    rows: int = 0
    stopped: Stop = "requests"
    error: str = ""


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
