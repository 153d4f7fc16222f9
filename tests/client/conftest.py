"""Both clients behind one interface, over a scripted transport: they must behave the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from agentjet.client import AsyncSwarmClient, SwarmClient
from tests.support.clients import TOKEN, URL, Clock, Face, MakeFace


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sync", "async"])
def make(request: pytest.FixtureRequest, clock: Clock) -> MakeFace:
    """Makes a client of either kind over a script."""

    def make_face(script: Callable[[httpx2.Request], httpx2.Response], **options: Any) -> Face:
        chosen: dict[str, Any] = {"url": URL, "token": TOKEN, "rng": random.Random(0), **options}
        chosen |= {"transport": httpx2.MockTransport(script), "clock": clock}
        if request.param == "sync":
            return Face(SwarmClient(sleep=clock.sleep, **chosen))
        return Face(AsyncSwarmClient(sleep=clock.async_sleep, **chosen))

    return make_face
