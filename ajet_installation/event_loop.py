"""The asyncio event loop of agentjet's processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["loop_factory"]


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return uvloop's event loop factory if it is installed, else asyncio's.

    uvloop has no wheels for some platforms; without it everything works, but slower.
    """
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
