"""Worlds of plugins, behind calls whose exceptions name the plugin."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ajet_core.interfaces import (
    Chat,
    ComponentSettings,
    World,
    WorldAnswer,
    WorldOutcome,
    WorldPrompt,
)
from ajet_core.interfaces.world import Split
from ajet_core.plugin.targets import plugin_faults

T = TypeVar("T")


class IsolatedWorld(World[ComponentSettings]):
    """A world of a plugin: what it raises, or a result of the wrong type, names the plugin.

    Exceptions of the chat are those of the model or its connection, and are raised as they are, as
    is an `AjetError`. The world's other attributes are also those of this object.

    :param world: the plugin's world.
    :param owner: the world in messages, as `PluginManager.describe` returns it.
    """

    def __init__(self, world: World[Any], owner: str) -> None:
        super().__init__(getattr(world, "settings", ComponentSettings()))
        self._world = world
        self._owner = owner
        vars(self)["reward_range"] = world.reward_range

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._world, name)

    @property
    def world_class(self) -> type[World[Any]]:
        """The class of the plugin's world."""
        return type(self._world)

    def __str__(self) -> str:
        return self._owner

    def task_ids(self, split: Split, seed: int, count: int, start: int = 0) -> list[str]:
        """Return the world's task ids.

        :raises PluginError: the world raised.
        """
        with plugin_faults(self._owner, "failed in task_ids"):
            return self._world.task_ids(split, seed, count, start)

    async def play(self, task_id: str, chat: Chat) -> WorldOutcome:
        """Play one episode.

        :raises PluginError: the world raised, or returned no `WorldOutcome`.
        """
        watched = _WatchedChat(chat)
        try:
            outcome = await self._world.play(task_id, watched)
        except (Exception, SystemExit) as error:
            if error is watched.raised:
                raise
            with plugin_faults(self._owner, "failed in play"):
                raise
        with plugin_faults(self._owner, "failed in play"):
            return _checked(outcome, WorldOutcome)

    def expert(self, prompt: WorldPrompt, rng: random.Random) -> WorldAnswer:
        """Return the world's best answer.

        :raises PluginError: the world raised, or returned no `WorldAnswer`.
        """
        with plugin_faults(self._owner, "failed in expert"):
            return _checked(self._world.expert(prompt, rng), WorldAnswer)

    def novice(self, prompt: WorldPrompt, rng: random.Random) -> WorldAnswer:
        """Return the world's answer for the warm-up.

        :raises PluginError: the world raised, or returned no `WorldAnswer`.
        """
        with plugin_faults(self._owner, "failed in novice"):
            return _checked(self._world.novice(prompt, rng), WorldAnswer)


class _WatchedChat(Chat):
    """A chat that remembers its exceptions, to tell them from those of the world.

    :ivar raised: the last one.
    """

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self.raised: BaseException | None = None

    async def ask(self, prompt: WorldPrompt) -> WorldAnswer:
        with self._remembered():
            return await self._chat.ask(prompt)

    async def wait(self, seconds: float) -> None:
        with self._remembered():
            await self._chat.wait(seconds)

    @contextmanager
    def _remembered(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.raised = error
            raise


def _checked(result: T, kind: type[T]) -> T:
    """Return the result of a method.

    :raises TypeError: it has another type.
    """
    if not isinstance(result, kind):
        raise TypeError(f"it returned a {type(result).__name__} instead of a {kind.__name__}")
    return result
