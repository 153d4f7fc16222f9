"""A call is made once for whoever asks again, and two who merely ask alike never share one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ajet_core.errors import RequestError
from ajet_server.gateway.formats.retries import Answers, SameRequest, SharedAnswer

RETRY: dict[str, Any] = {"x-stainless-retry-count": "1"}
NAMED: dict[str, Any] = {"idempotency-key": "n"}


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


async def read(answer: SharedAnswer) -> bytes:
    return await answer.wait()


async def unread(answer: SharedAnswer) -> bytes:
    """An answer that is made and told to nobody."""
    made = await answer.wait()
    answer.unread()
    return made


async def test_the_retry_of_a_request_that_was_turned_away_is_a_call_of_its_own() -> None:
    # Four ask alike, two of them are told to come back before anything is made for them.
    model, answers = Model(), Answers()
    first = [asyncio.create_task(read(answers.shared(same(), model.answer()))) for _ in range(2)]
    await asyncio.sleep(0)
    early = asyncio.create_task(read(answers.shared(same(**RETRY), model.answer())))
    await asyncio.sleep(0)
    model.free.set()
    got = await asyncio.gather(*first, early)
    late = await read(answers.shared(same(**RETRY), model.answer()))
    assert [*got, late] == [b"answer %d" % number for number in (1, 2, 3, 4)]


async def test_an_answer_that_nobody_has_read_is_given_to_one_retry() -> None:
    model, answers = Model(), Answers()
    model.free.set()
    assert await unread(answers.shared(same(), model.answer())) == b"answer 1"
    # Who does not say that it asks again wants an answer of its own.
    assert await read(answers.shared(same(), model.answer())) == b"answer 2"
    assert await read(answers.shared(same(**RETRY), model.answer())) == b"answer 1"
    assert await read(answers.shared(same(**RETRY), model.answer())) == b"answer 3"


async def test_an_answer_that_is_lost_again_is_given_again() -> None:
    model, answers = Model(), Answers()
    model.free.set()
    await unread(answers.shared(same(), model.answer()))
    assert await unread(answers.shared(same(**RETRY), model.answer())) == b"answer 1"
    assert await read(answers.shared(same(**RETRY), model.answer())) == b"answer 1"
    assert model.asked == 1


async def test_each_of_several_alike_that_were_lost_is_given_once() -> None:
    model, answers = Model(), Answers()
    model.free.set()
    for _ in range(2):
        lost = answers.shared(same(), model.answer())
        await unread(lost)
        lost.unread()
    retries = [await read(answers.shared(same(**RETRY), model.answer())) for _ in range(3)]
    assert retries == [b"answer 1", b"answer 2", b"answer 3"]


async def test_only_the_same_request_may_have_what_was_lost() -> None:
    model, answers = Model(), Answers()
    model.free.set()
    await unread(answers.shared(same(), model.answer()))
    others = [same(b"{ }", **RETRY), same(agent="b", **RETRY), same(**RETRY, **NAMED)]
    found = [await read(answers.shared(other, model.answer())) for other in others]
    assert found == [b"answer 2", b"answer 3", b"answer 4"]


@pytest.mark.parametrize("headers", [{}, NAMED])
async def test_what_nobody_waits_for_is_not_made(headers: dict[str, Any]) -> None:
    model, answers = Model(), Answers()
    answer = answers.shared(same(**headers), model.answer())
    task = asyncio.create_task(answer.wait())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    answer.unread()
    assert (model.asked, model.cancelled) == (1, 1)
    # And made anew for who asks after that.
    model.free.set()
    again = answers.shared(same(**RETRY, **headers), model.answer())
    assert await again.wait() == b"answer 2"


async def test_a_named_request_is_made_once_whoever_asks() -> None:
    model, answers = Model(), Answers()
    asking = [answers.shared(same(**NAMED), model.answer()).wait() for _ in range(2)]
    waiting = [asyncio.create_task(one) for one in asking]
    await asyncio.sleep(0)
    model.free.set()
    assert await asyncio.gather(*waiting) == [b"answer 1"] * 2
    assert await answers.shared(same(**NAMED), model.answer()).wait() == b"answer 1"
    with pytest.raises(RequestError, match="a different request"):
        answers.shared(same(b"[]", **NAMED), model.answer())


async def test_whoever_hangs_up_does_not_end_it_for_others_of_the_same_name() -> None:
    model, answers = Model(), Answers()
    first, again = (
        asyncio.create_task(answers.shared(same(**NAMED), model.answer()).wait()) for _ in range(2)
    )
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert model.cancelled == 0
    model.free.set()
    assert await again == b"answer 1"


@pytest.mark.parametrize("headers", [{}, NAMED])
async def test_failures_are_not_kept(headers: dict[str, Any]) -> None:
    model, answers = Model(), Answers()
    model.free.set()

    async def fail() -> bytes:
        raise RequestError("no")

    failing = answers.shared(same(**headers), fail())
    with pytest.raises(RequestError):
        await failing.wait()
    failing.unread()
    assert await answers.shared(same(**RETRY, **headers), model.answer()).wait() == b"answer 1"


@pytest.mark.parametrize("named", [True, False])
async def test_few_answers_are_kept_and_no_long_ones(named: bool) -> None:
    answers, made = Answers(), []

    def request(number: int) -> SameRequest:
        headers = {"idempotency-key": f"n{number}"} if named else RETRY
        return same(b"%d" % number, **headers)

    async def make(number: int) -> bytes:
        made.append(number)
        return b"x" * (100_000 if number == 40 else 1)

    for number in range(41):
        answer = answers.shared(request(number), make(number))
        await answer.wait()
        answer.unread()
        await asyncio.sleep(0)
    made.clear()
    for number in reversed(range(41)):
        await answers.shared(request(number), make(number)).wait()
    assert made == [40, *reversed(range(32))]
