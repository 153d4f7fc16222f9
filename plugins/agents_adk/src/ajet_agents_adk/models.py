"""Models of agents in episodes: they speak OpenAI's dialect and know which agent calls them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, Gemini, LlmRequest, LlmResponse
from google.adk.models.lite_llm import LiteLlm, LiteLLMClient

from agentjet.agents import Route, current_route, override_method

_OPENAI = "openai"
_speaker: ContextVar[str | None] = ContextVar("ajet_adk_speaker", default=None)


def speaker() -> str | None:
    """Return the name of the agent whose model is being called in the current context."""
    return _speaker.get()


def swap_models() -> None:
    """Give agents other models in episodes; repeated calls have no effect.

    :raises ConfigError: this version of ADK lacks the method.
    """
    override_method(LlmAgent, "canonical_model_async", _choosing)


def _choosing(choose: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def chooses(agent: Any, *args: Any, **kwargs: Any) -> Any:
        model = await choose(agent, *args, **kwargs)
        route = current_route()
        return model if route is None else _of_episode(model, agent.name, route)

    return chooses


def _of_episode(model: BaseLlm, agent: str, route: Route) -> BaseLlm:
    """Return the model that an agent calls in an episode instead of its own."""
    bare = model.model.rpartition("/")[2]
    if not route.passthrough.isdisjoint({model.model, bare}):
        return model
    if isinstance(model, LiteLlm):
        # No accessor: these are the arguments that the program has passed to it.
        options = dict(model._additional_args)
        return EpisodeModel(f"{_OPENAI}/{bare}", NamedClient(agent, model.llm_client), **options)
    if isinstance(model, Gemini):
        return EpisodeModel(f"{_OPENAI}/{bare}", NamedClient(agent, LiteLLMClient()))
    # Of an own class, which is rerouted if it uses httpx and a supported dialect.
    return NamedModel(agent, model)


class NamedClient(LiteLLMClient):
    """Sends the requests of one agent."""

    def __init__(self, agent: str, client: LiteLLMClient) -> None:
        super().__init__()
        self._agent = agent
        self._client = client

    async def acompletion(self, *args: Any, **kwargs: Any) -> Any:
        """Send a request, as the agent; a stream is read after it."""
        before = _speaker.set(self._agent)
        try:
            return await self._client.acompletion(*args, **kwargs)
        finally:
            _speaker.reset(before)


class EpisodeModel(LiteLlm):
    """A model of an episode, called in OpenAI's dialect.

    :param model: its name, with the provider ``openai``.
    :param options: the arguments of the program's `LiteLlm`.
    """

    def __init__(self, model: str, client: LiteLLMClient, **options: Any) -> None:
        # LiteLLM needs a key and an address. Neither is used.
        options["api_key"] = options.get("api_key") or "per episode"
        options["api_base"] = options.get("api_base") or "http://per.episode/v1"
        options.pop("custom_llm_provider", None)
        super().__init__(model=model, llm_client=client, **options)

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Call the model, whatever model the request names: that is the program's."""
        request = llm_request.model_copy(update={"model": self.model})
        async with aclosing(super().generate_content_async(request, stream)) as responses:
            async for response in responses:
                yield response


class NamedModel(BaseLlm):
    """Calls another model, as an agent."""

    def __init__(self, agent: str, model: BaseLlm) -> None:
        super().__init__(model=model.model)
        self._agent = agent
        self._inner = model

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Call the other model."""
        async with aclosing(self._inner.generate_content_async(llm_request, stream)) as responses:
            while True:
                before = _speaker.set(self._agent)
                try:
                    response = await anext(responses, None)
                finally:
                    _speaker.reset(before)
                if response is None:
                    return
                yield response
