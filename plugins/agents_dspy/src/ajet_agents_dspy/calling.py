"""Model calls of episodes: without DSPy's caches, and by an HTTP client that can be rerouted.

DSPy 3.4 sends most calls with an HTTP client of its own, which nothing outside can reach. Its other
engine, LiteLLM, uses httpx.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import dspy
from dspy.clients._deprecation import _adapter_call, adapter_message_call
from dspy.clients._litellm import get_litellm
from dspy.clients.model_metadata import source_info
from dspy.dsp.utils.settings import main_thread_config
from dspy.utils.parallelizer import ParallelExecutor

from agentjet.agents import Route, current_route, override_method, routed

_OPENAI = "openai"


def instrument() -> None:
    """Change how modules and models run in episodes; repeated calls have no effect.

    :raises ConfigError: this version of DSPy lacks one of the methods.
    """
    _load_prices()
    override_method(dspy.BaseLM, "__call__", _calling)
    override_method(dspy.BaseLM, "acall", _calling_async)
    override_method(dspy.Module, "__call__", _running)
    override_method(dspy.Module, "acall", _running_async)
    override_method(ParallelExecutor, "execute", _executing)


def _load_prices() -> None:
    """Load the prices of models that LiteLLM and DSPy contain, before the first call.

    By default each fetches them from GitHub, in the middle of an episode.
    """
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    get_litellm(feature="agentjet")
    source_info()


# --- Models ---------------------------------------------------------------------------------------


def _calling(call: Callable[..., Any]) -> Callable[..., Any]:
    def calls(lm: Any, *args: Any, **kwargs: Any) -> Any:
        of_episode = _of_episode(lm, args)
        if of_episode is None:
            return call(lm, *args, **kwargs)
        with _called_by_the_same(lm, of_episode):
            return call(of_episode, *args, **_uncached(kwargs))

    return calls


def _calling_async(call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def calls(lm: Any, *args: Any, **kwargs: Any) -> Any:
        of_episode = _of_episode(lm, args)
        if of_episode is None:
            return await call(lm, *args, **kwargs)
        with _called_by_the_same(lm, of_episode):
            return await call(of_episode, *args, **_uncached(kwargs))

    return calls


@contextmanager
def _called_by_the_same(lm: Any, of_episode: Any) -> Iterator[None]:
    """Mark a call of a copy as one of the adapter that calls the model.

    DSPy warns programs, but not its own adapters, of the messages that adapters pass.
    """
    caller = _adapter_call.get()
    if caller is None or caller[0] is not lm:
        yield
        return
    with adapter_message_call(of_episode, caller[1]):
        yield


def _uncached(kwargs: dict[str, Any]) -> dict[str, Any]:
    # A module can request the cache for its own calls.
    return {**kwargs, "cache": False}


def _of_episode(lm: Any, args: tuple[Any, ...]) -> Any:
    """Return a copy of a model for a call of the current episode; None if it stays as it is.

    It has no history. Retries are left to OpenAI's SDK, which marks a repeated request as such.
    """
    route = current_route()
    if route is None or not isinstance(lm, dspy.LM) or _passes(lm.model, route):
        return None
    if not isinstance(lm.engine, str):
        # Its author's engine has connections of its own; they are rerouted if it uses httpx.
        return lm.copy(cache=False)
    typed = bool(args) and isinstance(args[0], dspy.lm15.Request)
    return lm.copy(
        # A typed request names the same model.
        model=lm.model if typed else f"{_OPENAI}/{_bare(lm.model)}",
        engine="litellm",
        cache=False,
        num_retries=0,
        max_retries=lm.kwargs.get("max_retries", lm.num_retries),
        prompt_cache=None,
        # LiteLLM needs a key and, for other providers, an address. Neither is used.
        api_key=lm.kwargs.get("api_key") or "per episode",
        api_base=lm.kwargs.get("api_base") or "http://per.episode/v1",
    )


def _bare(model: str) -> str:
    """Return a model's name without its provider, as requests have it."""
    return str(model).partition("/")[2] or str(model)


def _passes(model: str, route: Route) -> bool:
    return not route.passthrough.isdisjoint({model, _bare(model)})


# --- Modules --------------------------------------------------------------------------------------


def _running(run: Callable[..., Any]) -> Callable[..., Any]:
    def runs(module: Any, *args: Any, **kwargs: Any) -> Any:
        if current_route() is None:
            return run(module, *args, **kwargs)
        with dspy.context(**_settings()):
            return run(module, *args, **kwargs)

    return runs


def _running_async(run: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def runs(module: Any, *args: Any, **kwargs: Any) -> Any:
        if current_route() is None:
            return await run(module, *args, **kwargs)
        with dspy.context(**_settings()):
            return await run(module, *args, **kwargs)

    return runs


def _settings() -> dict[str, Any]:
    """Return the settings of an episode that differ from those of the program.

    Histories and the trace of the process would keep prompts and modules of thousands of episodes,
    and show them to each other.
    """
    changed: dict[str, Any] = {"disable_history": True}
    if dspy.settings.trace is main_thread_config["trace"]:
        changed["trace"] = []
    return changed


def _executing(execute: Callable[..., Any]) -> Callable[..., Any]:
    """Run what `dspy.Parallel` runs in threads in the episode of its caller."""

    def executes(executor: Any, function: Callable[[Any], Any], data: Any) -> Any:
        route = current_route()
        if route is None:
            return execute(executor, function, data)

        def runs(item: Any) -> Any:
            with routed(route):
                return function(item)

        return execute(executor, runs, data)

    return executes
