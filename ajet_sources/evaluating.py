"""Evaluation of models on the tasks of a source, with any OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ajet_core.errors import ConfigError, UnreadableFileError
from ajet_core.files import write_whole
from ajet_core.interfaces import ModelEndpoint, Task, TaskSource
from ajet_core.pass_at import mean_pass_at
from ajet_sources.training import checked_outcome, scored_group

_Z = 1.959964  # of an interval of 95 %
_PASS_AT = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, kw_only=True)
class EvaluatedEpisode:
    """One episode of an evaluation, as it is kept.

    :param number: of the episode among those of its task and model, from 0.
    :param reward: None if it failed; `error` says why.
    :param answer: the text that was rewarded, if the source says it.
    """

    task_id: str
    model: str
    number: int
    reward: float | None = None
    components: Mapping[str, float] = field(default_factory=dict)
    answer: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class ModelEvaluation:
    """The result of one model.

    :param tasks: with at least one reward.
    :param reward: the mean over tasks of their mean rewards.
    :param interval: of 95 % around it; tasks are its samples, not episodes, because episodes of a
        task are alike. Wilson's if each task has one of two rewards, least and greatest, otherwise
        the normal one with the standard error of the tasks' means.
    :param pass_at: pass@k by k.
    :param failed: episodes without a reward.
    :param difference: to the first model, on the tasks that both have; None for the first.
    :param difference_interval: of 95 %, of the differences by task.
    """

    model: str
    tasks: int
    episodes: int
    failed: int
    reward: float | None
    interval: tuple[float, float] | None
    pass_at: Mapping[int, float]
    components: Mapping[str, float]
    difference: float | None = None
    difference_interval: tuple[float, float] | None = None


class EpisodeFile:
    """Episodes of an evaluation, one JSON object on each line; each is kept as soon as it ended.

    :param path: None keeps nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def read(self) -> list[EvaluatedEpisode]:
        """Return the episodes. A last line that was cut off, as by a crash, is dropped.

        :raises UnreadableFileError: another line is not an episode.
        """
        if self.path is None or not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8").split("\n")
        episodes = []
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                episodes.append(EvaluatedEpisode(**json.loads(line)))
            except (ValueError, TypeError) as error:
                if number == len(lines):
                    break
                raise UnreadableFileError(
                    f"{self.path}, line {number}: not an episode of an evaluation: {error}"
                ) from error
        return episodes

    def add(self, episode: EvaluatedEpisode) -> None:
        """Append an episode; it is on disk when this returns."""
        if self.path is None:
            return
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(asdict(episode))}\n")
            file.flush()
            os.fsync(file.fileno())

    def write(self, episodes: Sequence[EvaluatedEpisode]) -> None:
        """Replace the file by these episodes."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(f"{json.dumps(asdict(episode))}\n" for episode in episodes)
        write_whole(self.path, text.encode(), mode=0o644)


async def evaluate_source(
    source: TaskSource,
    tasks: Sequence[Task],
    models: Sequence[ModelEndpoint],
    *,
    samples: int = 1,
    concurrency: int = 16,
    timeout: float | None = None,
    retries: int = 1,
    kept: Sequence[EvaluatedEpisode] = (),
    on_episode: Callable[[EvaluatedEpisode], object] | None = None,
) -> list[EvaluatedEpisode]:
    """Roll out the tasks of an open source with each model.

    :param models: endpoints, each with another `model`.
    :param samples: episodes of each task and model.
    :param concurrency: episodes at once; never more than the source takes.
    :param timeout: seconds of an episode after which it has failed.
    :param retries: further attempts after a failed one; of a group, only for those that failed.
    :param kept: episodes of an interrupted evaluation; those with a reward are not repeated.
    :return: the episodes of these tasks, models and samples, those of `kept` too.
    :raises ConfigError: two models have the same name, or a group is larger than the source takes.
    """
    if len({model.model for model in models}) < len(models):
        raise ConfigError("two models have the same name", param="model")
    capacity = source.capacity()
    group = samples if source.in_groups else 1
    if capacity is not None and capacity < group:
        raise ConfigError(
            f"the source takes {capacity} episodes at a time, but a group has {group}",
            param="samples",
        )
    places = asyncio.Semaphore(max(1, min(concurrency, capacity or concurrency) // group))
    have = {
        (evaluated.model, evaluated.task_id, evaluated.number): evaluated
        for evaluated in kept
        if evaluated.reward is not None
    }
    wanted: list[list[tuple[ModelEndpoint, Task, int]]] = []
    result: list[EvaluatedEpisode] = []
    for task in tasks:
        for model in models:
            numbers = range(samples)
            known = [have[key] for n in numbers if (key := (model.model, task.id, n)) in have]
            result += known
            lacking = [n for n in numbers if (model.model, task.id, n) not in have]
            jobs = [(model, task, number) for number in lacking]
            wanted += [jobs] if group > 1 and jobs else [[job] for job in jobs]

    async def one(jobs: list[tuple[ModelEndpoint, Task, int]]) -> None:
        async with places:
            episodes = await _rolled_out(source, jobs, timeout, retries)
        result.extend(episodes)
        if on_episode is not None:
            for episode in episodes:
                on_episode(episode)

    async with asyncio.TaskGroup() as running:
        for jobs in wanted:
            running.create_task(one(jobs))
    order = {
        (model.model, task.id): place
        for place, (model, task) in enumerate((m, t) for m in models for t in tasks)
    }
    return sorted(
        result, key=lambda evaluated: (order[evaluated.model, evaluated.task_id], evaluated.number)
    )


async def rescore(
    source: TaskSource, tasks: Sequence[Task], kept: Sequence[EvaluatedEpisode]
) -> list[EvaluatedEpisode]:
    """Score kept answers again, without a model.

    :return: all of `kept`; those without an answer, or of other tasks, as they were.
    :raises ConfigError: the source cannot score answers.
    :raises EnvironmentFailedError: the grader failed.
    """
    by_id = {task.id: task for task in tasks}
    scored: list[EvaluatedEpisode] = []
    count = 0
    for episode in kept:
        task = by_id.get(episode.task_id)
        outcome = None
        if task is not None and episode.answer is not None:
            outcome = await source.score(task, episode.answer)
        if task is None or outcome is None:
            scored.append(episode)
            continue
        checked = checked_outcome(task, outcome)
        count += 1
        scored.append(
            replace(episode, reward=checked.reward, components=dict(checked.components), error="")
        )
    if not count:
        raise ConfigError(
            "nothing could be scored again: the source does not score answers, or none were kept",
            param="rescore",
        )
    return scored


def compared(
    episodes: Sequence[EvaluatedEpisode],
    models: Sequence[str],
    *,
    reward_range: tuple[float, float] = (0.0, 1.0),
    pass_reward: float | None = None,
) -> list[ModelEvaluation]:
    """Return the results of models, the first of which the others are compared with.

    :param pass_reward: the reward from which an episode counts as passed; None is the greatest.
    """
    passed = reward_range[1] if pass_reward is None else pass_reward
    results: list[ModelEvaluation] = []
    base: dict[str, float] = {}
    for model in models:
        own = [episode for episode in episodes if episode.model == model]
        rewards: dict[str, list[float]] = {}
        for episode in own:
            if episode.reward is not None:
                rewards.setdefault(episode.task_id, []).append(episode.reward)
        means = {task: math.fsum(given) / len(given) for task, given in rewards.items()}
        alike = Counter(
            (len(given), sum(reward >= passed for reward in given)) for given in rewards.values()
        )
        differences = [means[task] - base[task] for task in means if task in base]
        first = not results
        results.append(
            ModelEvaluation(
                model=model,
                tasks=len(means),
                episodes=len(own),
                failed=sum(episode.reward is None for episode in own),
                reward=_mean(means.values()),
                interval=interval(list(means.values()), reward_range),
                pass_at=mean_pass_at(alike, _PASS_AT),
                components=_components(own),
                difference=None if first else _mean(differences),
                difference_interval=None if first else interval(differences),
            )
        )
        base = base or means
    return results


def interval(
    values: Sequence[float], ends: tuple[float, float] | None = None
) -> tuple[float, float] | None:
    """Return the interval of 95 % of a mean; None for fewer than two values.

    :param values: finite ones; the interval is finite too.
    :param ends: if all values are one of these two, the interval is Wilson's (1927).
    """
    count = len(values)
    if count < 2:
        return None
    if ends is not None and set(values) <= set(ends):
        least, most = ends
        share = sum(value == most for value in values) / count
        scale = 1 + _Z**2 / count
        centre = (share + _Z**2 / (2 * count)) / scale
        half = _Z / scale * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2))
        low, high = (least * (1 - end) + most * end for end in (centre - half, centre + half))
        return low, high
    # Squares of large values would overflow; a power of two changes no digit.
    _, exponent = math.frexp(max(map(abs, values)))
    scaled = [math.ldexp(value, -exponent) for value in values]
    mean = math.fsum(scaled) / count
    variance = math.fsum((value - mean) ** 2 for value in scaled) / (count - 1)
    half = _Z * math.sqrt(variance / count)
    return _times_power(mean - half, exponent), _times_power(mean + half, exponent)


def _times_power(value: float, exponent: int) -> float:
    """Return `value` times a power of two, at most the largest float."""
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return math.copysign(sys.float_info.max, value)


@dataclass
class _Rollout:
    """:ivar result: what the source returned; of an episode without an error, at last its outcome.

    :ivar error: why it failed, "" if it did not.
    """

    result: Any = None
    error: str = ""
    seconds: float = 0.0


async def _rolled_out(
    source: TaskSource,
    jobs: Sequence[tuple[ModelEndpoint, Task, int]],
    timeout: float | None,
    retries: int,
) -> list[EvaluatedEpisode]:
    """Roll out one episode, or one group."""
    task = jobs[0][1]
    attempts: list[_Rollout] = [_Rollout(error="not tried") for _ in jobs]
    for left in reversed(range(retries + 1)):
        todo = [at for at, attempt in enumerate(attempts) if attempt.error]
        tries = await asyncio.gather(*(_attempt(source, jobs[at], timeout) for at in todo))
        for at, attempt in zip(todo, tries, strict=True):
            attempts[at] = attempt
        good = [attempt for attempt in attempts if not attempt.error]
        if left and len(good) < len(attempts):
            continue
        if source.in_groups and good:
            await _score(source, task, good, timeout)
        if not any(attempt.error for attempt in attempts):
            break
    episodes = []
    for (model, _, number), attempt in zip(jobs, attempts, strict=True):
        result = None if attempt.error else attempt.result
        episodes.append(
            EvaluatedEpisode(
                task_id=task.id,
                model=model.model,
                number=number,
                reward=None if result is None else result.reward,
                components={} if result is None else dict(result.components),
                answer=None if result is None else result.answer,
                metadata={} if result is None else dict(result.metadata),
                seconds=attempt.seconds,
                error=attempt.error.replace(model.api_key or "\0", "***"),
            )
        )
    return episodes


async def _attempt(
    source: TaskSource, job: tuple[ModelEndpoint, Task, int], timeout: float | None
) -> _Rollout:
    model, task, number = job
    endpoint = replace(model, episode_id=f"{model.model}/{task.id}/{number}")
    began = time.perf_counter()
    attempt = _Rollout()
    try:
        async with asyncio.timeout(timeout):
            attempt.result = await source.roll_out(task, endpoint)
            if not source.in_groups:
                attempt.result = checked_outcome(task, attempt.result)
    # A source may raise anything; the episode is reported as failed.
    except Exception as raised:  # noqa: BLE001
        attempt.error = f"{type(raised).__name__}: {raised}"
    attempt.seconds = time.perf_counter() - began
    return attempt


async def _score(
    source: TaskSource, task: Task, attempts: Sequence[_Rollout], timeout: float | None
) -> None:
    """Replace the results of a group by its outcomes; if that fails, all have failed."""
    try:
        async with asyncio.timeout(timeout):
            outcomes = await scored_group(source, task, [attempt.result for attempt in attempts])
    except Exception as raised:  # noqa: BLE001
        for attempt in attempts:
            attempt.error = f"{type(raised).__name__}: {raised}"
        return
    for attempt, outcome in zip(attempts, outcomes, strict=True):
        attempt.result = outcome


def _components(episodes: Sequence[EvaluatedEpisode]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for episode in episodes:
        for name, value in episode.components.items():
            values.setdefault(name, []).append(value)
    return {name: math.fsum(numbers) / len(numbers) for name, numbers in sorted(values.items())}


def _mean(values: Iterable[float]) -> float | None:
    given = list(values)
    return math.fsum(given) / len(given) if given else None
