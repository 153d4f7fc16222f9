"""The task source `gymnasium`."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import re
import textwrap
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ajet_core.errors import ConfigError, EnvironmentFailedError
from ajet_core.interfaces import Task
from ajet_sources import Play, Turn, TurnSource, action_in
from ajet_sources_gymnasium.settings import GymnasiumSettings

_COLOURED = re.compile(r"\x1b\[[\d;]*m(.*?)\x1b\[0m", re.DOTALL)
_AROUND = " \t\n.:!,;\"'`*"
_ACTIONS: Mapping[str, Sequence[str]] = {
    "FrozenLake": ("left", "down", "right", "up"),
    "CliffWalking": ("up", "right", "down", "left"),
    "CliffWalkingSlippery": ("up", "right", "down", "left"),
    "Taxi": ("south", "north", "east", "west", "pickup", "dropoff"),
    "Blackjack": ("stick", "hit"),
}
_FORM = (
    "You act in an environment, one action for each of your answers. Write the action between "
    "<action> and </action>. You may think before it. Without these marks, the whole answer is "
    "the action."
)


class GymnasiumSource(TurnSource[GymnasiumSettings]):
    """An environment of Gymnasium whose actions are discrete or texts. Tasks are seeds of resets.

    Each episode has an environment of its own. It steps in threads.
    """

    def __init__(self, settings: GymnasiumSettings, argument: str = "") -> None:
        super().__init__(settings, argument)
        self._names: Sequence[str] = ()
        self._rules = ""

    async def open(self) -> None:
        """Create the environment once, and see what it needs."""
        await asyncio.to_thread(self._inspect)

    @contextlib.asynccontextmanager
    async def play(self, task: Task) -> AsyncIterator[Play]:
        """Create an environment, and reset it with the seed of the task."""
        settings = self.settings
        try:
            environment = await asyncio.to_thread(self._make)
        except Exception as error:
            raise EnvironmentFailedError(
                f"{self.argument} cannot be created: {type(error).__name__}: {error}"
            ) from error
        playing = _Gymnasium(environment, self._names, settings.show, self._rules)
        try:
            await playing.reset(task.payload, settings.reset)
            yield playing
        finally:
            await playing.close()

    def _make(self) -> gymnasium.Env[Any, Any]:
        module, _, name = self.argument.rpartition(":")
        if module:
            importlib.import_module(module)
        spec = gymnasium.spec(name)
        # Most environments render pictures, or nothing.
        kept: dict[str, Any] = {}
        if self.settings.show != "observation" and "ansi" in _render_modes(spec):
            kept["render_mode"] = "ansi"
        return gymnasium.make(name, **kept, **self.settings.options)

    def _inspect(self) -> None:
        """:raises ConfigError: the environment cannot be created, or a model cannot act in it."""
        settings = self.settings
        try:
            environment = self._make()
        except gymnasium.error.DependencyNotInstalled as error:
            raise ConfigError(
                f"{self.argument} needs more packages: {_line(error)}", param="source"
            ) from error
        except gymnasium.error.Error as error:
            raise ConfigError(
                f"Gymnasium has no environment {self.argument!r}: {_line(error)} Write "
                "gymnasium:ID-vN, such as gymnasium:FrozenLake-v1, or gymnasium:MODULE:ID-vN",
                param="source",
            ) from error
        except ImportError as error:
            raise ConfigError(
                f"{self.argument} cannot be imported: {_line(error)}", param="source"
            ) from error
        except Exception as error:
            raise ConfigError(
                f"Gymnasium cannot create {self.argument}: {type(error).__name__}: "
                f"{_line(error)}; see sources.gymnasium.options",
                param="sources.gymnasium.options",
            ) from error
        with contextlib.closing(environment):
            space = environment.action_space
            if not isinstance(space, spaces.Discrete | spaces.Text):
                raise ConfigError(
                    f"a model cannot act in {self.argument}: its actions are {space}, and only "
                    "Discrete and Text are supported. Wrap the environment so that it has such "
                    "actions (gymnasium.ActionWrapper)",
                    param="source",
                )
            if settings.show in ("text", "both") and environment.render_mode != "ansi":
                raise ConfigError(
                    f"{self.argument} renders no text: set show=observation",
                    param="sources.gymnasium.show",
                )
            spec = environment.spec
            name = spec.name if spec is not None else ""
            if isinstance(space, spaces.Discrete):
                count = int(space.n)
                self._names = settings.actions or _ACTIONS.get(name, ())
                if len(self._names) not in (0, count) or len(set(self._names)) < len(self._names):
                    raise ConfigError(
                        f"{self.argument} has {count} actions: give {count} different names",
                        param="sources.gymnasium.actions",
                    )
            self._rules = "\n\n".join(
                filter(None, (_about(environment), _FORM, _choices(space, self._names)))
            )


class _Gymnasium(Play):
    def __init__(
        self, environment: gymnasium.Env[Any, Any], names: Sequence[str], show: str, rules: str
    ) -> None:
        self._environment, self._show, self.rules = environment, show, rules
        self._space = environment.action_space
        self._names = [name.casefold() for name in names]

    async def reset(self, seed: int, options: Mapping[str, Any]) -> None:
        """:raises EnvironmentFailedError: it raised."""
        try:
            self.first = await asyncio.to_thread(self._reset, seed, options)
        except Exception as error:
            raise _failed("reset", error) from error

    async def act(self, message: Mapping[str, Any]) -> Turn:
        """Take the action in the answer."""
        action = self._action(action_in(message.get("content") or ""))
        if action is None:
            choices = _choices(self._space, self._names)
            return Turn(f"That is not an action. {choices}", invalid=True)
        try:
            return await asyncio.to_thread(self._step, action)
        except Exception as error:
            raise _failed("step", error) from error

    async def close(self) -> None:
        # A step of a cancelled episode may still be running in its thread; it is left to its end.
        await asyncio.to_thread(self._environment.close)

    def _action(self, text: str) -> int | str | None:
        if isinstance(self._space, spaces.Text):
            return text if self._space.contains(text) else None
        assert isinstance(self._space, spaces.Discrete)
        given = text.strip(_AROUND).casefold()
        if given in self._names:
            return self._names.index(given) + int(self._space.start)
        if re.fullmatch(r"-?\d{1,9}", given) and self._space.contains(int(given)):
            return int(given)
        return None

    def _reset(self, seed: int, options: Mapping[str, Any]) -> Turn:
        observation, _ = self._environment.reset(seed=seed, options=dict(options) or None)
        return Turn(self._shown(observation))

    def _step(self, action: int | str) -> Turn:
        observation, reward, ended, truncated, _ = self._environment.step(action)
        return Turn(self._shown(observation), float(reward), bool(ended or truncated))

    def _shown(self, observation: Any) -> str:
        said = (
            observation if isinstance(observation, str) else f"observation: {_plain(observation)}"
        )
        if self._environment.render_mode != "ansi":
            return said
        # Colours mark things, such as where the agent is.
        picture = _COLOURED.sub(r"[\1]", str(self._environment.render())).strip("\n")
        return picture if self._show == "text" else f"{picture}\n{said}"


def _render_modes(spec: gymnasium.envs.registration.EnvSpec) -> Sequence[str]:
    entry = spec.entry_point
    if isinstance(entry, str):
        entry = gymnasium.envs.registration.load_env_creator(entry)
    modes: Sequence[str] = getattr(entry, "metadata", {}).get("render_modes", ())
    return modes


def _choices(space: spaces.Space[Any], names: Sequence[str]) -> str:
    if isinstance(space, spaces.Discrete):
        first, last = int(space.start), int(space.start + space.n) - 1
        named = f"{', '.join(names)}, or " if names else ""
        return f"Actions are {named}the numbers from {first} to {last}."
    assert isinstance(space, spaces.Text)
    return (
        f"Actions are texts of {space.min_length} to {space.max_length} of the characters "
        f"{space.characters!r}."
    )


def _about(environment: gymnasium.Env[Any, Any]) -> str:
    """Return the first paragraph of the environment's description that is not a heading."""
    text = textwrap.dedent(type(environment.unwrapped).__doc__ or "")
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    return next((part for part in paragraphs if part and part[0] != "#"), "")


def _plain(value: Any) -> Any:
    """Return an observation without types of NumPy, which would be written as such."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(map(_plain, value))
    return value


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _failed(what: str, error: Exception) -> EnvironmentFailedError:
    return EnvironmentFailedError(
        f"the environment's {what} failed: {type(error).__name__}: {error}"
    )
