"""Mutations of the source ``rows``."""

from __future__ import annotations

import asyncio
import itertools
import os
from dataclasses import replace
from typing import Any

from ajet_core.interfaces import EpisodeOutcome, Task
from ajet_sources.rows import RowsSource
from tests.mutants.planting import Mutants, around

rows = Mutants("source", "tests/sources/test_suite.py::TestRows")
ALL = (rows,)

_numbers = itertools.count()


def rolled_out(by: Any) -> None:
    """Replace a roll-out by a function of the original one, the source, the task and the model."""
    around(RowsSource, "roll_out", by)


def scored(by: Any) -> None:
    """Change an outcome, by a function of it and of the answer."""

    async def score(original: Any, self: Any, task: Any, answer: str) -> Any:
        return by(await original(self, task, answer), answer)

    around(RowsSource, "score", score)


@rows
def a_failure_is_the_least_reward() -> None:
    async def by(original: Any, self: Any, task: Any, episode: Any) -> Any:
        try:
            return await original(self, task, episode)
        except Exception:  # noqa: BLE001
            return EpisodeOutcome(reward=0.0)

    rolled_out(by)


@rows
def a_cancellation_is_the_least_reward() -> None:
    async def by(original: Any, self: Any, task: Any, episode: Any) -> Any:
        try:
            return await original(self, task, episode)
        except asyncio.CancelledError:
            return EpisodeOutcome(reward=0.0)

    rolled_out(by)


@rows
def the_key_is_in_the_environment() -> None:
    async def by(original: Any, self: Any, task: Any, episode: Any) -> Any:
        os.environ["OPENAI_API_KEY"] = episode.api_key
        return await original(self, task, episode)

    rolled_out(by)


@rows
def the_key_is_in_the_message() -> None:
    async def by(original: Any, self: Any, task: Any, episode: Any) -> Any:
        try:
            return await original(self, task, episode)
        except RuntimeError as error:
            raise RuntimeError(f"{error} (with {episode.api_key})") from error

    rolled_out(by)


@rows
def episodes_use_the_latest_key() -> None:
    async def by(original: Any, self: Any, task: Any, episode: Any) -> Any:
        self.latest = episode
        await asyncio.sleep(0)
        return await original(self, task, self.latest)

    rolled_out(by)


@rows
def rolling_out_changes_the_task() -> None:
    async def by(original: Any, self: Any, task: Any, episode: Any) -> Any:
        task.payload["seen"] = True
        return await original(self, task, episode)

    rolled_out(by)


@rows
def answers_are_kept_without_their_end() -> None:
    async def by(original: Any, self: Any, task: Any, episode: Any) -> Any:
        outcome = await original(self, task, episode)
        return replace(outcome, answer=outcome.answer[:-1])

    rolled_out(by)


@rows
def words_are_right() -> None:
    scored(lambda its, answer: EpisodeOutcome(reward=1.0) if "know" in answer else its)


@rows
def nothing_is_right() -> None:
    scored(lambda its, answer: its if answer else EpisodeOutcome(reward=1.0))


@rows
def junk_raises() -> None:
    scored(lambda its, answer: its if answer.isdecimal() else int(answer))


@rows
def every_second_score_is_less() -> None:
    scored(lambda its, _: replace(its, reward=its.reward * (1 - 0.5 * (next(_numbers) % 2))))


@rows
def ids_are_numbers_of_a_process() -> None:
    def tasks(original: Any, self: Any, split: str) -> list[Task]:
        return [replace(task, id=f"t{next(_numbers)}") for task in original(self, split)]

    around(RowsSource, "tasks", tasks)


@rows
def all_splits_have_all_tasks() -> None:
    def tasks(_: Any, self: Any, __: str) -> list[Task]:
        return [task for its in self._tasks.values() for task in its]

    around(RowsSource, "tasks", tasks)


@rows
def it_takes_no_episode() -> None:
    around(RowsSource, "capacity", lambda *_: 0)


@rows
def a_process_stays() -> None:
    async def by(original: Any, self: Any, task: Any, episode: Any) -> Any:
        # It ends by itself, because nothing else ends it.
        await asyncio.create_subprocess_exec("sleep", "20")
        return await original(self, task, episode)

    rolled_out(by)
