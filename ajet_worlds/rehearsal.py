"""Worlds played by a policy instead of a model, without server, network or delays."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ajet_core.interfaces import Chat, World, WorldAnswer, WorldOutcome, WorldPrompt
from ajet_worlds.isolation import IsolatedWorld

T = TypeVar("T")

Policy = Callable[[WorldPrompt, random.Random], WorldAnswer]
"""Maps a prompt to an answer, such as `World.expert`."""


@dataclass(frozen=True, slots=True)
class RehearsedCall:
    """One model call."""

    prompt: WorldPrompt
    answer: WorldAnswer


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """An episode that a policy played.

    :param exchanges: all calls, in order.
    :param seconds: time that slow tools would have taken.
    """

    outcome: WorldOutcome
    exchanges: tuple[RehearsedCall, ...]
    seconds: float


def rehearse(world: World, task_id: str, policy: Policy, rng: random.Random) -> Rehearsal:
    """Play one episode.

    :param rng: the policy's randomness.
    :raises RuntimeError: the world awaits something other than its chat.
    """
    chat = _Rehearsing(policy, rng)
    outcome = _finish(world.play(task_id, chat), world)
    return Rehearsal(outcome, tuple(chat.exchanges), chat.seconds)


@dataclass(slots=True)
class _Rehearsing(Chat):
    policy: Policy
    rng: random.Random
    exchanges: list[RehearsedCall] = field(default_factory=list)
    seconds: float = 0.0

    async def ask(self, prompt: WorldPrompt) -> WorldAnswer:
        said = self.policy(prompt, self.rng)
        answer = WorldAnswer(said.text, said.calls, id=f"answer-{len(self.exchanges)}")
        # Copy the prompt, because worlds append to their history.
        asked = WorldPrompt(
            tuple(prompt.messages), tuple(prompt.tools), prompt.agent, prompt.max_tokens
        )
        self.exchanges.append(RehearsedCall(asked, answer))
        return answer

    async def wait(self, seconds: float) -> None:
        self.seconds += seconds


def _finish(playing: Coroutine[Any, Any, T], world: World) -> T:
    """Run a coroutine that never suspends; needs no event loop, so it also works inside one."""
    try:
        playing.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        playing.close()
    name = str(world) if isinstance(world, IsolatedWorld) else type(world).__name__
    raise RuntimeError(
        f"{name}: play awaits something other than its chat; use chat.wait to let time pass"
    )
