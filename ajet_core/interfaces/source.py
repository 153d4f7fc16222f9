"""The task source, an environment with its tasks; the dataset reader; the judge, which rewards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Generic, Literal, Self, get_args

from ajet_core.interfaces.agent import ModelEndpoint
from ajet_core.interfaces.context import SettingsT_co
from ajet_core.task import EpisodeOutcome, Task

TaskProbe = Literal["reference", "nop", "unknown", "question"]
"""Scored without a model: the task's own solution, "", "I do not know", and the question itself."""

TASK_PROBES: tuple[TaskProbe, ...] = get_args(TaskProbe)
NO_ANSWER = "I do not know"


class TaskSource(Generic[SettingsT_co], ABC):
    """An environment: tasks, how one is rolled out with a model, and how it is scored.

    One object serves all episodes of a process, many at a time, on one event loop; it must not
    block the loop. It is an async context manager. Its constructor does nothing that can fail or
    takes long: `open` does.

    Everything that fails in the environment, rather than in the agent's work, must raise
    `EnvironmentFailedError`. The episode is then aborted. It must never become a reward.

    :ivar argument: what follows ``NAME:`` in the name of the source, "" by default.
    :ivar reward_range: least and greatest reward of a task; may be set for each object.
    :ivar in_groups: whether the episodes of a task are scored together, by `score_group`.
    """

    reward_range: tuple[float, float] = (0.0, 1.0)
    in_groups: bool = False

    def __init__(self, settings: SettingsT_co, argument: str = "") -> None:
        self.settings = settings
        self.argument = argument

    async def __aenter__(self) -> Self:
        """Open the source."""
        try:
            await self.open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Load or start what the source needs; called once, before the methods below.

        :raises ConfigError: the argument or a setting is wrong.
        :raises EnvironmentFailedError: the environment cannot be started.
        """

    async def close(self) -> None:
        """End what was started, also if `open` failed; no process of the source may be left."""

    def splits(self) -> Sequence[str]:
        """Return the names of its splits, the one to train on first."""
        return ("train",)

    @abstractmethod
    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split, in the same order each time.

        Ids are unique in the source, do not depend on the order of tasks, and are the same in each
        process: a key of the data set, or a digest of the content. Splits share no task.
        """

    def capacity(self) -> int | None:
        """Return how many episodes the environment takes at a time; None if any number."""
        return None

    @abstractmethod
    async def roll_out(self, task: Task, episode: ModelEndpoint) -> Any:
        """Roll out one episode with the model of `episode`.

        What the agent does wrong is rewarded: bad answers, crashes of its program, its time limit.
        A cancellation ends everything that belongs to the episode.

        :return: its `EpisodeOutcome`; with `in_groups`, what `score_group` takes.
        :raises EnvironmentFailedError: the environment or its grader failed.
        """

    async def score_group(self, task: Task, results: Sequence[Any]) -> Sequence[EpisodeOutcome]:
        """Score the episodes of a task together, for rewards that compare them.

        Needed with `in_groups`. Episodes that were given up are missing.

        :param results: what `roll_out` returned for each.
        :return: an outcome for each, in order.
        :raises EnvironmentFailedError: as `roll_out`; all these episodes are aborted.
        """
        raise NotImplementedError

    async def score(self, task: Task, answer: str) -> EpisodeOutcome | None:  # noqa: ARG002
        """Score an answer without a model; None if the source cannot.

        :raises EnvironmentFailedError: the grader failed.
        """
        return None

    def reference(self, task: Task) -> str | None:  # noqa: ARG002
        """Return an answer to which `score` gives the greatest reward, if it is known."""
        return None

    def question(self, task: Task) -> str:  # noqa: ARG002
        """Return what the model is asked, "" if it is not one text."""
        return ""

    async def probe(self, task: Task, probe: TaskProbe) -> EpisodeOutcome | None:
        """Score something that needs no model; None if the task has no such thing.

        :raises EnvironmentFailedError: the environment or its grader failed.
        """
        answers = {"nop": "", "unknown": NO_ANSWER}
        if probe == "reference":
            answer = self.reference(task)
        else:
            answer = answers[probe] if probe in answers else self.question(task) or None
        return None if answer is None else await self.score(task, answer)


class DatasetReader(Generic[SettingsT_co], ABC):
    """Reads datasets of one format. `agentjet.read_tasks` makes tasks of the items."""

    def __init__(self, settings: SettingsT_co) -> None:
        self.settings = settings

    @abstractmethod
    def read(self, source: str) -> Iterable[Any]:
        """Read a dataset; its items are in the same order each time.

        :param source: a path, or another name that the reader understands.
        :return: items, with a field ``id`` if the dataset has ids; mappings and strings need none.
        :raises UnreadableFileError: it cannot be read; the message names it, and the place in it.
        """


class Judge(Generic[SettingsT_co], ABC):
    """A reward function with settings. A judge serves all episodes of a process, in any thread."""

    def __init__(self, settings: SettingsT_co) -> None:
        self.settings = settings

    @abstractmethod
    def __call__(self, task: Any, result: Any) -> Any:
        """Return the reward of an episode, or an awaitable of it (only for async programs).

        :param task: the item of the dataset, as the program received it.
        :param result: what the program returned.
        :return: a finite number, or an `EpisodeOutcome`.
        """
