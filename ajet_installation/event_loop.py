"""Which asyncio event loop the processes of agentjet run on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Uvloop's event loop where it is installed, asyncio's own elsewhere.

    uvloop has no wheels for some platforms; everything works without it, only slower.
    """
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
