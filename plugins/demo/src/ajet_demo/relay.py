"""A walk of two agents: a planner sees the goal and directs an executor, who moves.

Neither can do it alone: the planner cannot move, and the executor only sees the planner's last
direction. Prompts and answers are those of GridWalk, so that any model of the demo can take either
role; every move is a separate conversation.
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
    """One walk of both agents.

    :ivar spoiled: the role whose answer had no direction, which ended the walk; "" if none.
    """

    walk: GridWalk
    spoiled: str = ""

    def spoil(self, role: str) -> None:
        """End the walk because of an answer without a direction."""
        self.spoiled = role
        self.walk.reject()

    def outcomes(self, calls: Mapping[str, Mapping[str, float]]) -> dict[str, EpisodeOutcome]:
        """Return the outcomes of both roles.

        The planner is rewarded for reaching the goal, the executor for following directions, and
        each for its part in every move.

        :param calls: rewards of calls, by role and id.
        """
        success = float(self.walk.outcome().success)
        executor_rewards = calls[EXECUTOR]
        rewards = {
            PLANNER: GOAL_REWARD * success,
            EXECUTOR: sum(executor_rewards.values()) / len(executor_rewards)
            if executor_rewards
            else 0.0,
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
    """One role with its model.

    :ivar rewards: rewards of its calls by id: 1 for a good one, -0.5 for one without a direction,
        else 0.
    """

    openai: AsyncOpenAI
    episode: Episode
    temperature: float
    rewards: dict[str, float] = field(default_factory=dict)
    _call: str = ""

    async def direction(self, sees: str) -> str | None:
        """Return the direction that the model chooses, None if its answer has none or several."""
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
        """Set the reward of the last call."""
        self.rewards[self._call] = reward


class RelayAgent:
    """Plays a task with two models per call; supports any number of concurrent joint episodes.

    :param max_retries: retries of every model call.
    :param http_client: as for `GridWalkAgent`.
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
            # Independent of what the executor does.
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
