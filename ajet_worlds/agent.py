"""An agent that plays a world with a served model, using the official OpenAI SDK.

It has no code for training. Like any agent, it gets a base URL, a key and a model name.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

from agentjet.client import Episode, EpisodeOutcome, Task
from ajet_core.errors import ConfigError
from ajet_core.interfaces import Chat, World, WorldAnswer, WorldCall, WorldOutcome, WorldPrompt

if TYPE_CHECKING:
    from openai import AsyncOpenAI

__all__ = [
    "AGENT_HEADER",
    "MAX_RETRIES",
    "TIMEOUT_SECONDS",
    "OpenAIChat",
    "WorldAgent",
    "episode_outcome",
    "shared_client",
]

AGENT_HEADER = "x-ajet-agent"
MAX_RETRIES = 2
TIMEOUT_SECONDS = 600.0


class WorldAgent:
    """Plays one task of a world per call; one instance serves any number of concurrent episodes.

    All episodes share one `AsyncOpenAI` and its connections: creating one per episode would cost
    far more than the episode's calls.

    :param temperature: temperature of every model call.
    :param http_client: an async client of the HTTP library that the installed SDK uses, instead of
        a new one.
    :raises ConfigError: the SDK is not installed.
    """

    def __init__(self, world: World, temperature: float = 1.0, *, http_client: Any = None) -> None:
        self._world = world
        self._temperature = temperature
        self._openai = shared_client(http_client)

    async def __call__(self, task: Task, episode: Episode) -> EpisodeOutcome:
        """Play the task of `task.id` with the model of `episode`."""
        return episode_outcome(await self._world.play(task.id, self.chat(episode)))

    async def success(self, task: Task, episode: Episode) -> EpisodeOutcome:
        """Play a task, with success as the reward, for `AsyncSwarmClient.evaluate`."""
        outcome = await self._world.play(task.id, self.chat(episode))
        return EpisodeOutcome(reward=outcome.success, components=outcome.components)

    def chat(self, episode: Episode) -> Chat:
        """Return a chat with the model of `episode`."""
        return OpenAIChat(self._openai, episode, self._temperature)

    async def close(self) -> None:
        """Close the connections."""
        await self._openai.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class OpenAIChat(Chat):
    """The model of an episode, called through its chat completions.

    :param openai: a client of `shared_client`.
    """

    def __init__(self, openai: AsyncOpenAI, episode: Episode, temperature: float) -> None:
        self._openai = openai.with_options(base_url=episode.base_url, api_key=episode.api_key)
        self._model = episode.model
        self._temperature = temperature

    async def ask(self, prompt: WorldPrompt) -> WorldAnswer:
        from openai.types.chat import ChatCompletion

        body: dict[str, Any] = {
            "model": self._model,
            "messages": list(prompt.messages),
            "temperature": self._temperature,
            "max_tokens": prompt.max_tokens,
        }
        if prompt.tools:
            body["tools"] = list(prompt.tools)
        headers = {AGENT_HEADER: prompt.agent} if prompt.agent else {}
        # As `chat.completions.create` does, which first compares each message with all types of
        # messages. That takes two thirds of the CPU time of a call.
        completion = await self._openai.post(
            "/chat/completions", cast_to=ChatCompletion, body=body, options={"headers": headers}
        )
        message = completion.choices[0].message
        calls = tuple(
            WorldCall(call.function.name, call.function.arguments, call.id)
            for call in message.tool_calls or []
            if call.type == "function"
        )
        return WorldAnswer(message.content or "", calls, completion.id)

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def episode_outcome(outcome: WorldOutcome) -> EpisodeOutcome:
    """Convert an outcome to the one that a client reports; ``success`` is among its components."""
    return EpisodeOutcome(
        reward=outcome.reward,
        components={"success": outcome.success, **outcome.components},
        call_rewards=outcome.call_rewards,
        agent_rewards=outcome.agent_rewards,
    )


def shared_client(http_client: Any = None) -> AsyncOpenAI:
    """Create a client for all episodes, each of which sets its base URL and key.

    :raises ConfigError: the SDK is not installed.
    """
    try:
        import openai
    except ImportError as error:
        raise ConfigError(
            "playing a world requires openai, which is not installed: "
            "pip install 'agentjet[demo]>=0.1'"
        ) from error
    if http_client is None:
        try:
            # This client is for many concurrent requests: it needs half the CPU time of the default
            # one.
            http_client = openai.DefaultAioHttpClient()
        except RuntimeError as error:
            raise ConfigError(
                "playing a world requires aiohttp, which is not installed: pip install "
                "'agentjet[demo]>=0.1'"
            ) from error
    # Placeholders that never reach the network: each episode sets its base URL and key.
    return openai.AsyncOpenAI(
        base_url="http://episode.invalid/v1",
        api_key="of-each-episode",
        http_client=http_client,
        max_retries=MAX_RETRIES,
        timeout=TIMEOUT_SECONDS,
    )
