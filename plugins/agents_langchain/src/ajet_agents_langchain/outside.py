"""Disable LangChain's answer caches and LangSmith tracing inside episodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain_core.caches import BaseCache
from langsmith import Client

from agentjet.agents import current_route, derived_classes, override_method


def bypass_caches() -> None:
    """Make caches neither return nor store anything in episodes: cached answers are not trained."""
    for kind in (BaseCache, *derived_classes(BaseCache)):
        for name in ("lookup", "update"):
            override_method(kind, name, _nothing)
            override_method(kind, f"a{name}", _nothing_async)


def disable_tracing() -> None:
    """Disable LangSmith tracing inside episodes: a run has thousands of them."""
    for name in ("create_run", "update_run"):
        override_method(Client, name, _nothing)


def _nothing(method: Callable[..., Any]) -> Any:
    def does(self: Any, *args: Any, **kwargs: Any) -> Any:
        return None if current_route() else method(self, *args, **kwargs)

    return does


def _nothing_async(method: Callable[..., Any]) -> Any:
    async def does(self: Any, *args: Any, **kwargs: Any) -> Any:
        return None if current_route() else await method(self, *args, **kwargs)

    return does
