"""The event log: order, replay, gaps, keep-alive."""

from __future__ import annotations

import asyncio

from ajet_core.protocol import Event
from ajet_server.observe.events import EventLog


async def collect(log: EventLog, count: int, after: int | None) -> list[Event | None]:
    found: list[Event | None] = []
    async for owned in log.read(after, keepalive=0.001):
        found.append(None if owned is None else owned.event)
        if len(found) == count:
            break
    return found


def log_of(count: int, capacity: int = 10) -> EventLog:
    log = EventLog(lambda: 0.0, capacity)
    for n in range(count):
        log.emit("step", {"n": n})
    return log


async def test_a_reader_gets_everything_after_the_id_it_names() -> None:
    found = await collect(log_of(5), 3, after=2)
    assert [e.id for e in found if e] == [3, 4, 5]
    assert [e.data for e in found if e] == [{"n": 2}, {"n": 3}, {"n": 4}]


async def test_a_new_reader_gets_only_what_comes_from_now_on() -> None:
    assert await collect(log_of(5), 1, after=None) == [None]


async def test_a_reader_that_fell_behind_is_told_what_it_lost() -> None:
    found = await collect(log_of(25, capacity=10), 2, after=3)
    assert found[0] is not None
    assert found[0].type == "gap"
    assert found[0].data == {"lost_from": 4, "lost_to": 15}
    assert found[1] is not None
    assert found[1].id == 16


async def test_an_id_from_an_earlier_server_process_does_not_hide_new_events() -> None:
    found = await collect(log_of(2), 2, after=1000)
    assert [e.id for e in found if e] == [1, 2]


async def test_ids_of_a_server_that_was_started_again_go_on_above_the_old_ones() -> None:
    before, after = EventLog(lambda: 1000.0), EventLog(lambda: 1060.0)
    before.emit("state", {})
    after.emit("state", {"n": 1})
    _, old = await collect(before, 2, after=0)
    assert old is not None
    gap, new = await collect(after, 2, after=old.id)
    assert gap is not None
    assert gap.type == "gap"
    assert new is not None
    assert new.id > old.id


async def test_a_reader_that_is_woken_without_news_is_told_at_once() -> None:
    log = log_of(1)
    reader = log.read(after=None, keepalive=None)
    first = asyncio.ensure_future(anext(reader))
    await asyncio.sleep(0)
    log.wake()
    assert await first is None


async def test_close_ends_readers() -> None:
    log = log_of(1)
    log.close()
    assert [event async for event in log.read(after=0)] == []
