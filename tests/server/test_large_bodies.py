"""Large bodies are read one at a time, with pauses for small calls."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ajet_server.http import llm_routes


class Clock:
    """An event loop's clock and timers, under control."""

    def __init__(self) -> None:
        self.now = 5.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, call: Callable[[], None]) -> None:
        self.timers.append((delay, call))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("ajet_server.http.llm_routes.asyncio.get_running_loop", lambda: clock)
    return clock


@pytest.mark.parametrize(("small", "pause"), [(0, 0.0), (1, 0.5), (30, 0.5)])
async def test_a_pause_follows_while_small_calls_are_in_progress(
    clock: Clock, small: int, pause: float
) -> None:
    bodies = llm_routes.Bodies()
    bodies.small = small

    def read() -> Any:
        clock.now += 0.25
        return "read"

    assert await bodies.read_large(read) == "read"
    assert [delay for delay, _ in clock.timers] == [pause]


async def test_the_next_is_read_after_the_pause_even_if_one_is_refused(clock: Clock) -> None:
    bodies = llm_routes.Bodies()
    order: list[int] = []

    def refused() -> Any:
        order.append(1)
        raise ValueError("refused")

    def accepted() -> Any:
        order.append(2)

    first = asyncio.ensure_future(bodies.read_large(refused))
    second = asyncio.ensure_future(bodies.read_large(accepted))
    with pytest.raises(ValueError, match="refused"):
        await first
    await asyncio.sleep(0)
    assert order == [1]
    clock.timers[0][1]()
    await second
    assert order == [1, 2]
