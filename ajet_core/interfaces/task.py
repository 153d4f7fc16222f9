"""Tasks and their outcomes; the dataset reader, which reads tasks, and the judge, which rewards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic

from ajet_core.interfaces.context import SettingsT_co


@dataclass(frozen=True)
class Task:
    """A task to roll out.

    :param id: episodes with the same id share a baseline, unless `group` is set.
    :param payload: any data that the agent needs; it is not sent to the server.
    :param tag: the part of a mixture that the task belongs to.
    :param difficulty: from 0 (easy) to 1, if it is known.
    """

    id: str
    payload: Any = None
    group: str | None = None
    tag: str = ""
    difficulty: float | None = None


@dataclass(frozen=True, kw_only=True)
class EpisodeOutcome:
    """An outcome, which an agent may return instead of a bare reward.

    :param components: named parts of the reward, for the logs.
    :param call_rewards: rewards of single calls, by the id of their chat completion.
    :param agent_rewards: rewards by agent name; they replace the episode's reward for the calls of
        these agents.
    :param allow_no_calls: as for `SwarmClient.end_episode`.
    :param answer: the text that was rewarded, if there is one; it is not sent to the server.
    """

    reward: float
    components: Mapping[str, float] = field(default_factory=dict)
    call_rewards: Mapping[str, float] = field(default_factory=dict)
    agent_rewards: Mapping[str, float] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    allow_no_calls: bool = False
    answer: str | None = None

    @classmethod
    def of(cls, value: object) -> EpisodeOutcome:
        """Convert an agent's return value to an outcome.

        :raises TypeError: the value is neither a number nor an outcome.
        """
        if isinstance(value, EpisodeOutcome):
            return value
        if hasattr(value, "__float__") and not isinstance(value, str):
            # bool, int, float, and the scalars of numpy and torch
            return cls(reward=float(value))
        hint = " (async agents need AsyncSwarmClient)" if hasattr(value, "__await__") else ""
        raise TypeError(
            f"the agent returned {type(value).__name__}; return the reward as a number, "
            f"or an EpisodeOutcome{hint}"
        )


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
