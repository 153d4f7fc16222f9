"""The dataset reader, which reads tasks, and the judge, which rewards their results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Generic

from ajet_core.interfaces.context import SettingsT_co


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
        :return: a finite number, or an `agentjet.EpisodeOutcome`.
        """
