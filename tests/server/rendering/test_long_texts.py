"""Long texts are left out of a renderer's work, which changes no token."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet_core.errors import RequestError
from ajet_server.gateway.rendering import long_texts, renderer
from ajet_server.gateway.rendering.long_texts import LongTexts
from ajet_server.gateway.rendering.messages import ChatMessage, ToolCall
from ajet_testing.tokenizers import MORE_SPECIALS, SPECIALS, renderer_for
from tests.support.tiers import examples

FAMILIES = [*SPECIALS, *MORE_SPECIALS]
EVERYTHING, LONGER_THAN_HEADERS, NOTHING = 3, 60, 10**9
PIECES = ["Move up", " ", "\n", "\n\n", "é", "😀", "<think>", "</think>", "<|im_end|>", "a" * 80]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)


@contextmanager
def setting(module: object, name: str, value: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, value)
        yield


@st.composite
def conversations(draw: st.DrawFn) -> list[ChatMessage]:
    messages = [ChatMessage("system", draw(TEXTS))] if draw(st.booleans()) else []
    for number in range(draw(st.integers(1, 3))):
        messages.append(ChatMessage("user", draw(TEXTS)))
        calls = (ToolCall(f"c{number}", "move", '{"direction": "up"}'),)
        if draw(st.booleans()):
            messages.append(ChatMessage("assistant", draw(TEXTS), tool_calls=calls))
            messages.append(ChatMessage("tool", draw(TEXTS), tool_call_id=f"c{number}"))
        messages.append(
            ChatMessage("assistant", draw(TEXTS), reasoning=draw(st.none() | TEXTS) or None)
        )
    return [*messages, ChatMessage("user", draw(TEXTS))]


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=examples(15), deadline=None)
@given(messages=conversations())
def test_stand_ins_change_neither_tokens_nor_spans(name: str, messages: list[ChatMessage]) -> None:
    rendered: list[object] = []
    for limit in (NOTHING, EVERYTHING):
        with setting(long_texts, "LONG_TEXT", limit):
            try:
                whole = renderer_for(name).render(messages, None)
            except RequestError as error:
                rendered.append(error.message)
                continue
            rendered.append((whole.ids, renderer_for(name).spans(whole, messages, None)))
    assert rendered[0] == rendered[1]


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=examples(10), deadline=None)
@given(messages=conversations(), new=st.lists(TEXTS, min_size=1, max_size=2))
def test_the_end_of_a_prompt_is_enough_to_extend_it_and_to_read_its_answer(
    name: str, messages: list[ChatMessage], new: list[str]
) -> None:
    family = renderer_for(name)
    filled = [ChatMessage("user", "Where is the goal? " * 200), *messages[-1:]]
    try:
        prompt = family.render(filled, None).ids
    except RequestError:
        filled = [ChatMessage("user", "Where is the goal? " * 200 + messages[-1].content)]
        prompt = family.render(filled, None).ids
    assert len(prompt) > 512
    sampled = [*family.encode("Go up."), family.stop_token_ids[0]]
    following = [ChatMessage("user", text) for text in new[:1]]
    found = []
    for tail, limit in ((512, NOTHING), (NOTHING, NOTHING), (512, LONGER_THAN_HEADERS)):
        with setting(renderer, "_TAIL", tail), setting(long_texts, "LONG_TEXT", limit):
            found.append(
                (
                    family.bridge(prompt, sampled, following, None, reasoned=False),
                    family.parse(sampled, prompt, None),
                )
            )
    assert found[0] == found[1] == found[2]


def test_a_text_is_encoded_once_for_all_threads() -> None:
    begun, go_on = threading.Event(), threading.Event()
    encoded: list[str] = []

    def encode(text: str) -> array[int]:
        encoded.append(text)
        begun.set()
        assert go_on.wait(30)
        return array("I", [len(text)])

    texts = LongTexts(encode)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(texts.encode, "abc")
        assert begun.wait(30)
        others = [pool.submit(texts.encode, "abc") for _ in range(3)]
        go_on.set()
        assert [one.result(30).tolist() for one in (first, *others)] == [[3]] * 4
    assert encoded == ["abc"]


def test_a_text_that_cannot_be_encoded_is_tried_again() -> None:
    attempts: list[str] = []

    def encode(text: str) -> array[int]:
        attempts.append(text)
        if len(attempts) == 1:
            raise ValueError("not now")
        return array("I", [7])

    texts = LongTexts(encode)
    with pytest.raises(ValueError, match="not now"):
        texts.encode("abc")
    assert texts.encode("abc").tolist() == [7]


def test_the_kept_tokens_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_texts, "_KEPT_BYTES", 40)
    monkeypatch.setattr(long_texts, "_ENTRY_BYTES", 0)
    encoded: list[str] = []

    def encode(text: str) -> array[int]:
        encoded.append(text)
        return array("I", [0] * 4)

    texts = LongTexts(encode)
    for text in ("a", "b", "a", "c", "b", "a"):
        texts.encode(text)
    # Two texts of four tokens of four bytes fit: c takes the place of b, and b that of a.
    assert encoded == ["a", "b", "c", "b", "a"]
