"""The world: a small environment in which an agent can be trained and measured.

A world has no connection and no model. It sends prompts to a `Chat`, so that the same program can
be played by a served model, by its expert, or by a novice whose games warm a model up.
"""

from __future__ import annotations

import json
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal

from ajet_core.interfaces.context import SettingsT_co
from ajet_core.protocol import AlgorithmConfig, BatchConfig, TimelineConfig

Split = Literal["train", "eval"]
Message = Mapping[str, Any]
"""A message or a tool, as the chat completions API of OpenAI defines it."""


@dataclass(frozen=True, slots=True)
class WorldCall:
    """A tool call as the model wrote it.

    :param arguments: JSON if the model wrote valid JSON, otherwise its text.
    """

    name: str
    arguments: str
    id: str = "call"

    @classmethod
    def of(cls, name: str, **arguments: object) -> WorldCall:
        """Create a call with the given arguments."""
        return cls(name, json.dumps(arguments))


@dataclass(frozen=True, slots=True)
class WorldAnswer:
    """An answer of the model.

    :param id: id of the completion, which is the key in `WorldOutcome.call_rewards`.
    """

    text: str = ""
    calls: tuple[WorldCall, ...] = ()
    id: str = ""

    def message(self) -> Message:
        """Return the answer as a message for the history."""
        if not self.calls:
            return {"role": "assistant", "content": self.text}
        calls = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in self.calls
        ]
        return {"role": "assistant", "content": self.text or None, "tool_calls": calls}


@dataclass(frozen=True, slots=True)
class WorldPrompt:
    """A prompt for the model.

    :param agent: name of the agent in a world of several agents; sent as ``x-ajet-agent``.
    :param max_tokens: maximum number of tokens of the answer.
    """

    messages: Sequence[Message]
    tools: Sequence[Message] = ()
    agent: str = ""
    max_tokens: int = 32


class Chat(ABC):
    """The model of one episode, as a world sees it."""

    @abstractmethod
    async def ask(self, prompt: WorldPrompt) -> WorldAnswer:
        """Return the model's answer to `prompt`."""

    @abstractmethod
    async def wait(self, seconds: float) -> None:
        """Wait, as a slow tool does; a rehearsal only counts the time."""


@dataclass(frozen=True, slots=True)
class WorldOutcome:
    """The outcome of an episode.

    :param reward: the training reward, within `World.reward_range`.
    :param success: 0 to 1; the measure of the world. The reward may include more, as penalties.
    :param components: further numbers for the logs.
    :param call_rewards: rewards of single calls, by `WorldAnswer.id`.
    :param agent_rewards: rewards by agent, for worlds of several agents.
    """

    reward: float
    success: float
    components: Mapping[str, float] = field(default_factory=dict)
    call_rewards: Mapping[str, float] = field(default_factory=dict)
    agent_rewards: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldRecipe:
    """Settings with which a tiny model learns a world on two CPU cores.

    :param steps: training steps after which a healthy trainer has reached `target`.
    :param target: the mean success that counts as learned.
    :param warmup_steps: supervised steps on the novice's games before training.
    """

    steps: int
    algorithm: AlgorithmConfig
    batch: BatchConfig = field(default_factory=BatchConfig)
    timelines: TimelineConfig = field(default_factory=TimelineConfig)
    target: float = 0.9
    warmup_steps: int = 240


class World(Generic[SettingsT_co], ABC):
    """A small environment.

    One object serves any number of concurrent episodes. All randomness of an episode derives from
    its task, so that the same task and answers give the same prompts and outcome in any process.

    :cvar recipe: training settings with which a tiny model learns the world.
    :cvar reward_range: minimum and maximum reward of an episode, an agent and a call.
    """

    recipe: ClassVar[WorldRecipe]
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __init__(self, settings: SettingsT_co) -> None:
        self.settings = settings

    def task_ids(self, split: Split, seed: int, count: int, start: int = 0) -> list[str]:
        """Return ids of `count` tasks from `start` on. Splits and seeds share no tasks."""
        return [f"{split}-{seed}-{number}" for number in range(start, start + count)]

    @abstractmethod
    async def play(self, task_id: str, chat: Chat) -> WorldOutcome:
        """Play one episode. Must not await anything but `chat`."""

    @abstractmethod
    def expert(self, prompt: WorldPrompt, rng: random.Random) -> WorldAnswer:
        """Return the best answer given the prompt; anything else must be learned from rewards."""

    @abstractmethod
    def novice(self, prompt: WorldPrompt, rng: random.Random) -> WorldAnswer:
        """Return an answer of the right form that is mostly wrong; used to warm up a model."""
