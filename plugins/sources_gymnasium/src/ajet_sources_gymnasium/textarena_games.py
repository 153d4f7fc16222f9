"""The task source `textarena`."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from ajet_core.errors import ConfigError, EnvironmentFailedError
from ajet_core.interfaces import Task
from ajet_sources import Play, Turn, TurnSource
from ajet_sources_gymnasium.settings import TextArenaSettings

_T = TypeVar("_T")
# Games use the random generator of the process.
_GENERATOR = threading.Lock()
_OTHERS = re.compile(r"number of players|num_players|players", re.IGNORECASE)


class TextArenaSource(TurnSource[TextArenaSettings]):
    """A game of TextArena for one player. Tasks are seeds.

    Each episode draws from its own random numbers, although games use those of the process.
    """

    async def open(self) -> None:
        """Begin a game once, and see what it needs."""
        await asyncio.to_thread(self._inspect)

    @contextlib.asynccontextmanager
    async def play(self, task: Task) -> AsyncIterator[Play]:
        """Begin a game with the seed of the task."""
        playing = _Game(task.payload)
        try:
            await asyncio.to_thread(playing.begin, self._make)
        except Exception as error:
            raise EnvironmentFailedError(
                f"the game did not begin: {type(error).__name__}: {error}"
            ) from error
        yield playing

    def _make(self) -> Any:
        import textarena

        return textarena.make(self.argument, **self.settings.options)

    def _inspect(self) -> None:
        """:raises ConfigError: there is no such game, or it needs what is not there."""
        try:
            from textarena.envs.registration import ENV_REGISTRY
        except ImportError as error:
            raise ConfigError(
                'TextArena is not installed: pip install "agentjet[textarena]>=0.1"', param="source"
            ) from error
        if self.argument not in ENV_REGISTRY:
            alike = get_close_matches(self.argument, sorted(ENV_REGISTRY), n=1)
            hint = f" (did you mean {alike[0]!r}?)" if alike else ""
            raise ConfigError(
                f"TextArena has no game {self.argument!r}{hint}; write textarena:ID, such as "
                "textarena:GuessTheNumber-v0",
                param="source",
            )
        try:
            _Game(0).begin(self._make)
        except LookupError as error:
            said = " ".join(str(error).replace("*", "").split())
            missing = re.search(r"Resource\s+'?(\w+)'?\s+not found", said)
            way = (
                f"run python -m nltk.downloader {missing[1]}"
                if missing
                else f"{type(error).__name__}: {said}"
            )
            raise ConfigError(
                f"the game {self.argument} needs data that is not there: {way}", param="source"
            ) from error
        except Exception as error:
            said = f"{type(error).__name__}: {' '.join(str(error).split())}"
            if isinstance(error, AssertionError | TypeError) and _OTHERS.search(said):
                raise ConfigError(
                    f"{self.argument} is a game for several players ({said}): only games for one "
                    "player are supported, because the model has no opponent",
                    param="source",
                ) from error
            raise ConfigError(
                f"the game {self.argument} does not begin: {said}; see sources.textarena.options",
                param="source",
            ) from error


class _Game(Play):
    rules = ""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._random = random.Random(seed).getstate()  # noqa: S311 - no secret
        self._game: Any = None
        self._seen = ""

    def begin(self, make: Callable[[], Any]) -> None:
        """Create the game and reset it."""

        def begun() -> str:
            self._game = make()
            self._game.reset(num_players=1, seed=self._seed)
            return self._observed()

        self.first = Turn(self._with_own_random(begun))

    async def act(self, message: Mapping[str, Any]) -> Turn:
        """Make the move that the answer is. The game itself decides about invalid ones."""
        try:
            return await asyncio.to_thread(
                self._with_own_random, lambda: self._step(message.get("content") or "")
            )
        except Exception as error:
            raise EnvironmentFailedError(
                f"the game failed: {type(error).__name__}: {error}"
            ) from error

    def _step(self, move: str) -> Turn:
        done, _ = self._game.step(move)
        if not done:
            return Turn(self._observed(move))
        rewards, _ = self._game.close()
        return Turn("The game is over.", float(rewards[0]), done=True)

    def _observed(self, move: str = "") -> str:
        """Return what is new: observations repeat all earlier ones, and the player's own move."""
        _, seen = self._game.get_observation()
        new = seen.removeprefix(self._seen)
        self._seen = seen
        if move:
            own = re.compile(rf"\s*\[[^\]\n]*\] \[?{re.escape(move)}\]?(?=\n|$)")
            new = own.sub("", new, count=1) if own.match(new) else new
        return str(new).strip("\n") or "(nothing new)"

    def _with_own_random(self, action: Callable[[], _T]) -> _T:
        with _GENERATOR:
            others = random.getstate()
            random.setstate(self._random)
            try:
                return action()
            finally:
                self._random = random.getstate()
                random.setstate(others)
