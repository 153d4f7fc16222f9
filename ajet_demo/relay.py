"""A walk that takes two: a planner, who sees where the goal is, tells an executor, who moves, where to go.

Neither can do it alone: the planner has no legs, and the executor is told nothing but the planner's last word. Both see and
speak as in GridWalk, so that any model of the demo can be either; every move is a conversation of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentjet.client import Episode, EpisodeOutcome, SwarmEpisode, Task
from ajet_worlds.agent import MAX_RETRIES, shared_client
from ajet_worlds.gridwalk import (
    GOAL_REWARD,
    INVALID_REWARD,
    SYSTEM_PROMPT,
    TOOLS,
    GridWalk,
    read_direction,
)

if TYPE_CHECKING:
    from openai import AsyncOpenAI

MAX_TOKENS = 32
PLANNER = "planner"
EXECUTOR = "executor"


@dataclass(slots=True)
class Relay:
    """One walk of two.

    :ivar spoiled: who gave an answer without a direction, and so ended the walk; "" nobody.
    """

    walk: GridWalk
    spoiled: str = ""

    def spoil(self, role: str) -> None:
        """End the walk because of an answer without a direction."""
        self.spoiled = role
        self.walk.reject()

    def outcomes(self, calls: Mapping[str, Mapping[str, float]]) -> dict[str, EpisodeOutcome]:
        """The rewards of both roles.

        The planner is rewarded for the goal, the executor for going where it was told, and each for its own part in
        every move.

        :param calls: rewards of calls, by role and id.
        """
        success = float(self.walk.outcome().success)
        told = calls[EXECUTOR]
        rewards = {
            PLANNER: GOAL_REWARD * success,
            EXECUTOR: sum(told.values()) / len(told) if told else 0.0,
        }
        if self.spoiled:
            rewards[self.spoiled] = INVALID_REWARD
        return {
            role: EpisodeOutcome(
                reward=reward, call_rewards=calls[role], components={"success": success}
            )
            for role, reward in rewards.items()
        }


@dataclass(slots=True)
class _Speaker:
    """One side, and its model.

    :ivar rewards: of its calls, by their id: 1 for a good one, -0.5 for one without a direction, else 0.
    """

    openai: AsyncOpenAI
    episode: Episode
    temperature: float
    rewards: dict[str, float] = field(default_factory=dict)
    _call: str = ""

    async def direction(self, sees: str) -> str | None:
        """The direction that its model chooses, None if its answer holds none or several."""
        completion = await self.openai.chat.completions.create(
            model=self.episode.model,
            messages=[
                {"role": "system", "content": SYSTEM_PROMPT},
                {"role": "user", "content": sees},
            ],
            tools=TOOLS,  # type: ignore[arg-type]
            temperature=self.temperature,
            max_tokens=MAX_TOKENS,
        )
        self._call = completion.id
        message = completion.choices[0].message
        calls = [call for call in message.tool_calls or [] if call.type == "function"]
        if len(calls) != 1:
            return None
        return read_direction(calls[0].function.name, calls[0].function.arguments)

    def credit(self, reward: float) -> None:
        """Reward its last call."""
        self.rewards[self._call] = reward


class RelayAgent:
    """Lets two models walk one task per call; one instance serves any number of concurrent joint episodes.

    :param max_retries: of every model call.
    :param http_client: as of `GridWalkAgent`.
    """

    def __init__(
        self, temperature: float = 1.0, *, max_retries: int = MAX_RETRIES, http_client: Any = None
    ) -> None:
        self._temperature = temperature
        self._openai = shared_client(http_client).with_options(max_retries=max_retries)

    async def __call__(self, task: Task, episode: SwarmEpisode) -> dict[str, EpisodeOutcome]:
        """Walk the task of `task.id`."""
        relay = Relay(GridWalk(task.id))
        walk = relay.walk
        planner = self._speaker(episode[PLANNER])
        executor = self._speaker(episode[EXECUTOR])
        while not walk.done:
            said = await planner.direction(walk.observation())
            if said is None:
                planner.credit(INVALID_REWARD)
                relay.spoil(PLANNER)
                break
            # Whatever becomes of it.
            planner.credit(float(said in walk.good_directions()))
            moved = await executor.direction(f"goal is 1 {said}")
            if moved is None:
                executor.credit(INVALID_REWARD)
                relay.spoil(EXECUTOR)
                break
            executor.credit(float(moved == said))
            walk.move(moved)
        return relay.outcomes({PLANNER: planner.rewards, EXECUTOR: executor.rewards})

    async def close(self) -> None:
        """Close the connections."""
        await self._openai.close()

    def _speaker(self, episode: Episode) -> _Speaker:
        openai = self._openai.with_options(base_url=episode.base_url, api_key=episode.api_key)
        return _Speaker(openai, episode, self._temperature)
