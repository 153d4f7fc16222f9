"""Changes to AutoGen inside episodes: bypass answer caches and keep tools in their episode."""

from __future__ import annotations

import contextvars
import copy
import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from autogen_core.tools import FunctionTool

from agentjet.agents import current_route, override_method
from ajet_core.errors import ConfigError

_CACHES = "autogen_ext.models.cache"


def bypass_caches() -> None:
    """Make `ChatCompletionCache` call its client in episodes: cached answers cannot be trained."""
    caches = sys.modules.get(_CACHES)
    if caches is not None:
        for name in ("create", "create_stream"):
            override_method(caches.ChatCompletionCache, name, functools.partial(_asking, name))


def _asking(name: str, method: Callable[..., Any]) -> Any:
    def asks(self: Any, *args: Any, **kwargs: Any) -> Any:
        if current_route() is None:
            return method(self, *args, **kwargs)
        return getattr(self.client, name)(*args, **kwargs)

    return asks


def let_tools_keep_the_episode() -> None:
    """Pass the context to the threads of synchronous functions, which AutoGen does not do."""
    override_method(FunctionTool, "run", _keeping)


def _keeping(run: Callable[..., Any]) -> Any:
    async def keeps(self: FunctionTool, *args: Any, **kwargs: Any) -> Any:
        if current_route() is None:
            return await run(self, *args, **kwargs)
        function = getattr(self, "_func", None)
        if function is None:
            raise ConfigError(
                "FunctionTool of this version of AutoGen has no _func; "
                "agentjet-agents-autogen supports 0.7"
            )
        if inspect.iscoroutinefunction(function):
            return await run(self, *args, **kwargs)
        tool: Any = copy.copy(self)
        tool._func = functools.partial(contextvars.copy_context().run, function)
        return await run(tool, *args, **kwargs)

    return keeps
