"""Calls that end at the same time: each is recorded as what is new in it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from ajet_core.errors import StoreFullError
from ajet_core.timeline import Call
from ajet_server.embedded.trie import TokenTrie
from ajet_server.gateway.formats.exchange import Session
from ajet_server.gateway.rendering.conversation import ConversationIndex
from ajet_server.gateway.rendering.messages import ChatMessage
from tests.server.dialects.families import FAMILIES
from tests.server.dialects.scripted import USER, gateway

SYSTEM = {"role": "system", "content": "Be brief."}
LONG = {"role": "system", "content": "Where is the goal? " * 50}


class Store:
    """Writes calls in the order they come, when it is let; then, like a real one, all at once."""

    def __init__(self, gate):
        self.open = asyncio.Event()
        self.requested: list[Call] = []
        self.calls: list[Call] = []
        self.fails: Callable[[int], bool] = lambda number: False
        gate.record = self.record

    async def record(self, call):
        number = len(self.requested)
        self.requested.append(call)
        await self.open.wait()
        if self.fails(number):
            raise StoreFullError("no room")
        self.calls.append(call)

    async def until(self, count):
        while len(self.requested) < count:
            await asyncio.sleep(0)


async def during_one_write(store: Store, work: Sequence[Awaitable[Any]], count: int):
    """All of `work`, whose `count` calls are written only when all of them wait."""
    tasks = [asyncio.ensure_future(one) for one in work]
    await store.until(count)
    store.open.set()
    return await asyncio.gather(*tasks, return_exceptions=True)


def check(gate, calls):
    given = {request.request_id: request.prompt_ids for request in gate.engine.requests}
    said: dict[Any, Any] = {}
    trie = TokenTrie("ep")
    for call in calls:
        assert call.prompt_ids == given[call.call_id]
        said.setdefault(tuple(call.prompt_ids), [m.text for m in call.conversation()])
        assert [m.text for m in call.conversation()] == said[tuple(call.prompt_ids)]
        trie.add(call)
    assert len({call.index for call in calls}) == len(calls)
    stored = sum(len(call.suffix_ids) + len(call.sampled_ids) for call in calls)
    return stored, trie.tree().tokens


def answers(count, name="qwen3"):
    return [FAMILIES[name].said(f"goal is {i} down") for i in range(count)]


async def test_sixteen_calls_of_one_prompt_are_stored_as_one_prompt():
    gate = gateway(answers(16), fair=True)
    store = Store(gate)
    await during_one_write(store, [gate.complete(LONG, USER) for _ in range(16)], 16)
    first, *others = store.calls
    assert first.base is None
    assert all(call.shared == first.prompt_length and not call.suffix_ids for call in others)
    assert all(not call.messages for call in others)
    assert [call.index for call in store.calls] == list(range(16))
    check(gate, store.calls)


async def test_choices_of_a_rendered_and_of_an_extended_prompt_share_it():
    gate = gateway(answers(9), fair=True)
    store = Store(gate)
    store.open.set()
    completion = await gate.complete(LONG, USER, n=4)
    assert [len(call.suffix_ids) for call in store.calls[1:]] == [0] * 3
    said = [choice.message.content for choice in completion.choices]
    history: list[dict[str, Any]]
    history = [LONG, USER, {"role": "assistant", "content": said[2]}, LONG | {"role": "user"}]
    store.open.clear()
    await during_one_write(store, [gate.complete(*history, n=4)], 8)
    extended = store.calls[4:]
    assert extended[0].parent_call_id == f"{completion.id}-2"
    assert [len(call.suffix_ids) for call in extended[1:]] == [0] * 3
    assert all(call.prompt_length == extended[0].prompt_length for call in extended)
    check(gate, store.calls)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
async def test_a_later_call_extends_the_one_whose_answer_it_brings(name):
    gate = FAMILIES[name].gate(*answers(12, name), fair=True)
    store = Store(gate)
    together = await during_one_write(store, [gate.complete(LONG, USER) for _ in range(6)], 6)
    store.open.clear()
    said = [done.choices[0].message.content for done in together]
    assert len(set(said)) == 6
    follow = [
        gate.complete(LONG, USER, {"role": "assistant", "content": text}, USER) for text in said
    ]
    await during_one_write(store, follow, 12)
    by_id = {call.call_id: call for call in store.calls}
    for call in store.calls[6:]:
        before = by_id[call.parent_call_id or ""]
        assert call.prompt_ids[: before.length] == before.token_ids
        assert call.conversation()[2].text == before.answer
    stored, tree = check(gate, store.calls)
    assert stored <= tree + 16 * len(store.calls)


async def test_sessions_of_one_service_share_nothing_with_each_other():
    gate = gateway(answers(8), fair=True)
    store = Store(gate)
    own, other = gate.session, Session("other", ConversationIndex())

    async def ask(session):
        gate.session = session
        return await gate.complete(LONG, USER)

    await during_one_write(store, [ask(s) for s in (own, other) * 4], 8)
    for session in (own, other):
        calls = [call for call in store.calls if call.episode_id == session.episode_id]
        assert [call.shared for call in calls] == [0] + [calls[0].prompt_length] * 3
        assert {call.base.episode_id for call in calls[1:]} == {session.episode_id}
        assert [call.index for call in calls] == list(range(4))


async def test_a_conversation_is_not_extended_before_its_call_is_durable():
    gate = gateway("there<|im_end|>")
    store = Store(gate)
    asked = asyncio.ensure_future(gate.complete(SYSTEM, USER))
    await store.until(1)
    echo = ChatMessage("assistant", "there")
    messages = [*gate.requests[0][0], echo, ChatMessage("user", "go on")]
    index = gate.session.index
    early = index.plan(messages, None).render(gate.renderer)
    assert early.parent is None
    assert index.prefix(early).base is store.requested[0]
    store.open.set()
    await asked
    assert index.plan(messages, None).render(gate.renderer).parent is store.calls[0]


async def test_calls_after_one_that_could_not_be_written_share_with_each_other():
    gate = gateway(answers(12), fair=True)
    store = Store(gate)
    store.fails = lambda number: number in {0, 3}
    done = await during_one_write(store, [gate.complete(LONG, USER) for _ in range(6)], 6)
    assert [isinstance(one, StoreFullError) for one in done].count(True) == 2
    lost = {store.requested[0].call_id, store.requested[3].call_id}
    await gate.complete(LONG, USER)
    await gate.complete(LONG, USER, {"role": "user", "content": "more"})
    for call in store.calls[4:]:
        # A base in the store, so that it is not stored as a whole.
        assert call.base.call_id not in lost
    assert not store.calls[4].suffix_ids
    assert store.calls[5].shared > store.calls[4].prompt_length / 2
    check(gate, store.calls)
    index = gate.session.index
    restored = ConversationIndex.restore(store.calls)
    for messages, tools in gate.requests:
        again, live = (i.plan(messages, tools).render(gate.renderer) for i in (restored, index))
        assert again == live
        assert restored.prefix(again).tokens == index.prefix(live).tokens


async def test_a_prompt_made_while_its_base_was_written_is_settled_on_another_if_that_failed():
    gate = gateway(answers(3))
    store = Store(gate)
    store.fails = lambda number: number == 0
    lost = asyncio.ensure_future(gate.complete(LONG, USER))
    await store.until(1)
    gate.engine.hold = asyncio.Event()
    later = asyncio.ensure_future(gate.complete(LONG, USER))
    await gate.engine.held.wait()
    store.open.set()
    with pytest.raises(StoreFullError):
        await lost
    gate.engine.hold.set()
    await later
    (call,) = store.calls
    assert call.base is None
    assert [m.text.role for m in call.messages] == ["system", "user"]
    check(gate, store.calls)
