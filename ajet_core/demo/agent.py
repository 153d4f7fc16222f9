"""The demo's agent: a plain tool loop over the official OpenAI SDK.

Nothing in it knows of training. It gets a base URL, a key and a model name, as any agent does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ajet_core.client import Episode, EpisodeOutcome, Task
from ajet_core.demo.gridwalk import TOOLS, GridWalk
from ajet_core.errors import ConfigError

if TYPE_CHECKING:
    from openai import AsyncOpenAI

MAX_TOKENS = 32
MAX_RETRIES = 2
TIMEOUT_SECONDS = 600.0


class GridWalkAgent:
    """Walks one task per call; one instance serves any number of concurrent episodes.

    All episodes share one `AsyncOpenAI` and its connections: making one per episode costs far more than
    the calls of an episode.

    :param temperature: of every model call.
    :param http_client: an async client of the HTTP library the installed SDK uses, instead of one made here.
    :raises ConfigError: the SDK is not installed.
    """

    def __init__(self, temperature: float = 1.0, *, http_client: Any = None) -> None:
        self._temperature = temperature
        self._openai = shared_client(http_client)

    async def __call__(self, task: Task, episode: Episode) -> EpisodeOutcome:
        """Walk the task of `task.id` with the model of `episode`."""
        walk = GridWalk(task.id)
        await self.walk(walk, episode)
        outcome = walk.outcome()
        return EpisodeOutcome(
            reward=outcome.reward,
            components={
                "success": float(outcome.success),
                "invalid": float(outcome.invalid),
                "moves": float(outcome.moves),
            },
        )

    async def walk(self, walk: GridWalk, episode: Episode) -> None:
        """Talk to the model until the walk is over."""
        client = self._openai.with_options(base_url=episode.base_url, api_key=episode.api_key)
        messages: list[Any] = list(walk.messages())
        tools: list[Any] = TOOLS
        while not walk.done:
            completion = await client.chat.completions.create(
                model=episode.model,
                messages=messages,
                tools=tools,
                temperature=self._temperature,
                max_tokens=MAX_TOKENS,
            )
            message = completion.choices[0].message
            calls = [call for call in message.tool_calls or [] if call.type == "function"]
            if not calls:
                walk.reject()
                return
            messages.append(message)
            for call in calls:
                reply = await self.use_tool(walk, call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": reply})

    async def use_tool(self, walk: GridWalk, name: str, arguments: str) -> str:
        """The reply to one tool call; a slower world overrides it."""
        return walk.call(name, arguments)

    async def close(self) -> None:
        """Close the connections."""
        await self._openai.close()


def shared_client(http_client: Any = None) -> AsyncOpenAI:
    """A client for all episodes, each of which gives it its own address and key.

    :raises ConfigError: the SDK is not installed.
    """
    try:
        import openai
    except ImportError as error:
        raise ConfigError(
            "the demo's agent needs openai, which is not installed: pip install 'agentjet[demo]'"
        ) from error
    if http_client is None:
        try:
            # The SDK's own client for many requests at a time: half the CPU time of its default one.
            http_client = openai.DefaultAioHttpClient()
        except RuntimeError as error:
            raise ConfigError(
                "the demo's agent needs aiohttp, which is not installed: pip install 'agentjet[demo]'"
            ) from error
    # Base URL and key are those of each episode; these never reach the network.
    return openai.AsyncOpenAI(
        base_url="http://episode.invalid/v1",
        api_key="of-each-episode",
        http_client=http_client,
        max_retries=MAX_RETRIES,
        timeout=TIMEOUT_SECONDS,
    )
