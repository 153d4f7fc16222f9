"""Sources of plugins, behind calls whose exceptions name the plugin."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from ajet_core.errors import AjetError
from ajet_core.interfaces import (
    ComponentSettings,
    EpisodeOutcome,
    ModelEndpoint,
    Task,
    TaskProbe,
    TaskSource,
)
from ajet_core.plugin.targets import plugin_faults

T = TypeVar("T")


class IsolatedSource(TaskSource[ComponentSettings]):
    """A source of a plugin: what it raises names the plugin.

    An `AjetError` is raised as it is, and so is a group of exceptions. The source's other
    attributes are also those of this object.

    :param source: the plugin's source.
    :param owner: the source in messages, as `PluginManager.describe` returns it.
    """

    def __init__(self, source: TaskSource[Any], owner: str) -> None:
        super().__init__(
            getattr(source, "settings", ComponentSettings()), getattr(source, "argument", "")
        )
        self._source = source
        self._owner = owner

    def __getattribute__(self, name: str) -> Any:
        # A source may set them when it is opened.
        if name in {"in_groups", "reward_range"}:
            return getattr(self._source, name)
        return super().__getattribute__(name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._source, name)

    def __str__(self) -> str:
        return self._owner

    async def open(self) -> None:
        """Open the source."""
        await self._awaited("open", self._source.open)

    async def close(self) -> None:
        """Close the source."""
        await self._awaited("close", self._source.close)

    def splits(self) -> Sequence[str]:
        """Return the source's splits."""
        with self._named("splits"):
            return self._source.splits()

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the source's tasks."""
        with self._named("tasks"):
            return self._source.tasks(split)

    def capacity(self) -> int | None:
        """Return the source's capacity."""
        with self._named("capacity"):
            return self._source.capacity()

    async def roll_out(self, task: Task, episode: ModelEndpoint) -> Any:
        """Roll out an episode."""
        return await self._awaited("roll_out", lambda: self._source.roll_out(task, episode))

    async def score_group(self, task: Task, results: Sequence[Any]) -> Sequence[EpisodeOutcome]:
        """Score episodes of a task together."""
        return await self._awaited("score_group", lambda: self._source.score_group(task, results))

    async def score(self, task: Task, answer: str) -> EpisodeOutcome | None:
        """Score an answer."""
        return await self._awaited("score", lambda: self._source.score(task, answer))

    def reference(self, task: Task) -> str | None:
        """Return the source's reference answer."""
        with self._named("reference"):
            return self._source.reference(task)

    def question(self, task: Task) -> str:
        """Return the source's question."""
        with self._named("question"):
            return self._source.question(task)

    async def probe(self, task: Task, probe: TaskProbe) -> EpisodeOutcome | None:
        """Score something that needs no model."""
        return await self._awaited("probe", lambda: self._source.probe(task, probe))

    async def _awaited(self, method: str, call: Callable[[], Awaitable[T]]) -> T:
        with self._named(method):
            return await call()

    @contextmanager
    def _named(self, method: str) -> Iterator[None]:
        passed = (AjetError, ExceptionGroup)
        with plugin_faults(self._owner, f"failed in {method}", passed=passed):
            yield
