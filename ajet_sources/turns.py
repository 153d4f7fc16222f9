"""Sources whose episodes take turns: the environment shows something, the model acts, and so on."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import httpx2
from pydantic import Field

from ajet_core.errors import EnvironmentFailedError
from ajet_core.interfaces import (
    NO_ANSWER,
    ComponentSettings,
    EpisodeOutcome,
    ModelEndpoint,
    Task,
    TaskProbe,
    TaskSource,
)
from ajet_sources.questions import ModelClient, chat

_ACTION = re.compile(r"<action>(.*?)</action>", re.DOTALL)
# Seeds of the two splits are this far apart.
_EVAL_SEEDS = 2**30
_KEPT = ("role", "content", "tool_calls")

Reply = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Turn:
    """What an environment answers to a reset or to an action.

    :param shows: what the model sees next: a text, or messages, such as the results of tool calls.
    :param reward: of the action; None if the environment gave none.
    :param done: whether the environment has ended the episode.
    :param invalid: whether the model's message was not an action. The environment did not move.
    """

    shows: str | Sequence[Mapping[str, Any]]
    reward: float | None = None
    done: bool = False
    invalid: bool = False

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """What it shows, as messages."""
        if isinstance(self.shows, str):
            return [{"role": "user", "content": self.shows}]
        return self.shows


class Play(ABC):
    """An environment in one episode.

    :ivar first: what it answered to the reset.
    :ivar rules: the system message, if the settings have none: what the model can do, and how it
        writes an action.
    :ivar tools: tools with which the model acts, as in a request for a chat completion.
    """

    first: Turn
    rules: str = ""
    tools: Sequence[Mapping[str, Any]] = ()

    @abstractmethod
    async def act(self, message: Mapping[str, Any]) -> Turn:
        """Take the action in a message of the model.

        :raises EnvironmentFailedError: the environment failed.
        """


class TurnSettings(ComponentSettings):
    """:param size: the number of tasks of the split ``train``, if tasks are seeds.

    :param eval_size: the number of tasks of the split ``eval``; 0 for no such split.
    :param seed: of the first task. Seeds of ``eval`` are others.
    :param system: the system message; by default what is known of the environment, and how to
        write an action.
    :param max_steps: the model calls of an episode, at most. The sum of the rewards
        until then is its reward.
    :param invalid_action: what follows an answer that is not an action: the model is shown why and
        answers ``again``, or it is the ``end`` of the episode.
    :param invalid_reward: is added to the reward for each such answer.
    :param reward_range: the least and the greatest reward of an episode.
    """

    size: Annotated[int, Field(ge=1, le=_EVAL_SEEDS)] = 500
    eval_size: Annotated[int, Field(ge=0, le=_EVAL_SEEDS)] = 100
    seed: Annotated[int, Field(ge=0, le=_EVAL_SEEDS)] = 0
    system: str = ""
    max_steps: Annotated[int, Field(ge=1)] = 100
    invalid_action: Literal["again", "end"] = "again"
    invalid_reward: float = 0.0
    reward_range: tuple[float, float] = (0.0, 1.0)


TurnSettingsT = TypeVar("TurnSettingsT", bound=TurnSettings)


def action_in(text: str) -> str:
    """Return what stands in the last ``<action>``, or else the whole text."""
    actions = _ACTION.findall(text)
    return (actions[-1] if actions else text).strip()


class TurnSource(TaskSource[TurnSettingsT]):
    """Lets the model act until the environment ends the episode. Subclasses define `play`.

    Tasks are seeds, and their payloads are these numbers, if a subclass does not define others.
    The reward is the sum of the rewards of all actions.
    """

    def __init__(self, settings: TurnSettingsT, argument: str = "") -> None:
        super().__init__(settings, argument)
        self.reward_range = settings.reward_range
        self._models = ModelClient()

    @abstractmethod
    def play(self, task: Task) -> AbstractAsyncContextManager[Play]:
        """Reset the environment for an episode of a task; the context's end closes it.

        :raises EnvironmentFailedError: the environment failed.
        """

    async def close(self) -> None:
        """Close the connections to the model; subclasses call this too."""
        await self._models.close()

    def splits(self) -> Sequence[str]:
        """``train``, and ``eval`` if it has a size."""
        return ("train", "eval") if self.settings.eval_size else ("train",)

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split: seeds."""
        settings = self.settings
        first, size = (settings.seed, settings.size)
        if split == "eval":
            first, size = first + _EVAL_SEEDS + 1, settings.eval_size
        return [Task(f"seed-{seed}", payload=seed) for seed in range(first, first + size)]

    async def roll_out(self, task: Task, episode: ModelEndpoint) -> EpisodeOutcome:
        """Let the model of the episode act."""
        client: httpx2.AsyncClient = self._models.get()

        async def reply(
            messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
        ) -> Mapping[str, Any]:
            return await chat(episode, messages, client, **({"tools": tools} if tools else {}))

        return await self._played(task, reply)

    async def probe(self, task: Task, probe: TaskProbe) -> EpisodeOutcome | None:
        """Play with a model that always gives the same answer; None for solutions."""
        if probe not in ("nop", "unknown"):
            return None
        message = {"role": "assistant", "content": "" if probe == "nop" else NO_ANSWER}

        async def reply(*_: object) -> Mapping[str, Any]:
            return message

        return await self._played(task, reply)

    async def _played(self, task: Task, reply: Reply) -> EpisodeOutcome:
        """:raises EnvironmentFailedError: the environment failed, or ended without a reward."""
        settings = self.settings
        steps = invalid = 0
        async with self.play(task) as play:
            turn = play.first
            rules = settings.system or play.rules
            messages: list[Mapping[str, Any]] = [{"role": "system", "content": rules}]
            messages = [*(messages if rules else ()), *turn.messages]
            given: list[float] = []
            while not turn.done and steps < settings.max_steps:
                answer = await reply(messages, play.tools)
                messages.append(
                    {"content": "", **{key: answer[key] for key in _KEPT if answer.get(key)}}
                )
                turn = await play.act(answer)
                steps += 1
                messages += turn.messages
                if turn.reward is not None:
                    given.append(turn.reward)
                if turn.invalid:
                    invalid += 1
                    given.append(settings.invalid_reward)
                    if settings.invalid_action == "end":
                        break
        if turn.done and not given:
            raise EnvironmentFailedError(
                f"the environment ended the episode of {task.id} and gave no reward"
            )
        if not math.isfinite(sum(given)):
            raise EnvironmentFailedError(f"the rewards of {task.id} have no finite sum: {given}")
        return EpisodeOutcome(
            reward=float(sum(given)),
            components={"steps": float(steps), "invalid_actions": float(invalid)},
        )
