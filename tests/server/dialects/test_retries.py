"""Requests that are sent again are answered by the call that was made."""

from __future__ import annotations

import asyncio

import pytest

from ajet_core.errors import RequestError
from ajet_core.server.dialects.retries import Answers, SameRequest

RETRY = {"x-stainless-retry-count": "1"}


class Model:
    """Counts its answers, and makes them when it is let."""

    def __init__(self) -> None:
        self.asked = self.cancelled = 0
        self.free = asyncio.Event()

    async def answer(self) -> bytes:
        self.asked += 1
        number = self.asked
        try:
            await self.free.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return b"answer %d" % number


def same(body: bytes = b"{}", agent: str = "", **headers: str) -> SameRequest:
    return SameRequest.read(headers, "/v1/x", agent, body)


async def test_a_retry_in_flight_waits_for_the_first() -> None:
    model, answers = Model(), Answers()
    first = asyncio.create_task(answers.shared(same(), model.answer()).wait())
    again = asyncio.create_task(answers.shared(same(**RETRY), model.answer()).wait())
    other = asyncio.create_task(answers.shared(same(), model.answer()).wait())
    await asyncio.sleep(0)
    model.free.set()
    assert await asyncio.gather(first, again, other) == [b"answer 1", b"answer 1", b"answer 2"]


async def test_whoever_hangs_up_does_not_end_it_for_the_other_one() -> None:
    model, answers = Model(), Answers()
    first = asyncio.create_task(answers.shared(same(), model.answer()).wait())
    again = asyncio.create_task(answers.shared(same(**RETRY), model.answer()).wait())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert model.cancelled == 0
    model.free.set()
    assert await again == b"answer 1"


async def test_what_nobody_waits_for_is_not_made() -> None:
    model, answers = Model(), Answers()
    tasks = [
        asyncio.create_task(answers.shared(request, model.answer()).wait())
        for request in (same(), same(**RETRY))
    ]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (model.asked, model.cancelled) == (1, 1)
    # And made anew for who asks after that.
    model.free.set()
    assert await answers.shared(same(**RETRY), model.answer()).wait() == b"answer 2"


async def test_only_a_retry_of_the_same_request_is_one() -> None:
    model, answers = Model(), Answers()
    model.free.set()
    assert await answers.shared(same(), model.answer()).wait() == b"answer 1"
    assert await answers.shared(same(**RETRY), model.answer()).wait() == b"answer 1"
    others = [same(b"{ }", **RETRY), same(agent="b", **RETRY), same()]
    found = [await answers.shared(other, model.answer()).wait() for other in others]
    assert found == [b"answer 2", b"answer 3", b"answer 4"]


async def test_a_named_request_is_made_once_whoever_asks() -> None:
    model, answers = Model(), Answers()
    model.free.set()
    named = same(**{"idempotency-key": "n"})
    assert await answers.shared(named, model.answer()).wait() == b"answer 1"
    assert await answers.shared(named, model.answer()).wait() == b"answer 1"
    with pytest.raises(RequestError, match="another request"):
        answers.shared(same(b"[]", **{"idempotency-key": "n"}), model.answer())


async def test_failures_are_not_kept() -> None:
    model, answers = Model(), Answers()
    model.free.set()

    async def fail() -> bytes:
        raise RequestError("no")

    with pytest.raises(RequestError):
        await answers.shared(same(), fail()).wait()
    assert await answers.shared(same(**RETRY), model.answer()).wait() == b"answer 1"


async def test_few_answers_are_kept_and_no_long_ones() -> None:
    answers = Answers()

    async def long() -> bytes:
        return b"x" * 100_000

    async def short() -> bytes:
        return b"x"

    await answers.shared(same(b"long"), long()).wait()
    for number in range(50):
        await answers.shared(same(b"%d" % number), short()).wait()
        await asyncio.sleep(0)
    assert len(answers._by_key) == 2
