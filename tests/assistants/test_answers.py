"""Answers of tools are bounded and contain no tokens, and their pages lose nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("mcp")

from ajet_cli.mcp.answers import HIDDEN, MAX_BYTES, bounded, page_of, without_tokens
from ajet_core.errors import RequestError
from tests.support.tiers import examples

LEAVES = st.none() | st.booleans() | st.integers() | st.text()
DATA = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=8), inner)
)
TOKEN = "ajet-ct-" + "A1_b-" * 6


@settings(deadline=None, max_examples=examples(40))
@given(DATA, st.integers(1, 40_000), st.integers(1, 400))
def test_no_answer_is_larger_than_the_bound(data: Any, length: int, items: int) -> None:
    large = {"data": {"small": data, "text": "é" * length, "list": ["x" * 300] * items}, "cut": []}
    content, text = bounded(large, ())
    assert len(text.encode()) <= MAX_BYTES
    assert json.loads(text) == content
    if content["data"] != large["data"]:
        assert content["cut"]


def test_a_small_answer_is_unchanged() -> None:
    answer = {"data": {"a": [1, "two", None]}, "cursor": "x", "cut": []}
    assert bounded(answer, ())[0] == answer


def test_a_long_text_keeps_its_beginning_and_its_end() -> None:
    answer = {"data": {"text": "first" + "x" * 50_000 + "last"}, "cut": []}
    content, _ = bounded(answer, ())
    assert content["data"]["text"].startswith("first")
    assert content["data"]["text"].endswith("last")
    assert content["cut"] == ["data.text"]


def test_what_cannot_be_shortened_is_refused() -> None:
    numbers = {"data": {f"metric_{n}": n for n in range(5000)}, "cut": []}
    with pytest.raises(RequestError, match="larger than 20000 bytes"):
        bounded(numbers, ())


@settings(deadline=None, max_examples=examples(40))
@given(st.text(), st.text(), DATA)
def test_tokens_are_hidden_wherever_they_are(before: str, after: str, data: Any) -> None:
    said = {"key " + TOKEN: [f"{before} {TOKEN} {after}", {"own": f"{before}my own secret"}, data]}
    hidden = json.dumps(without_tokens(said, ["my own secret", ""]), ensure_ascii=False)
    assert TOKEN not in hidden
    assert "my own secret" not in hidden
    assert hidden.count(HIDDEN) >= 3


@settings(deadline=None, max_examples=examples(40))
@given(st.lists(st.integers(0, 9000), max_size=30))
def test_pages_have_each_item_once(sizes: list[int]) -> None:
    items = [{"id": str(n), "text": "x" * size} for n, size in enumerate(sizes)]
    seen, cursor = [], ""
    while True:
        page, after = page_of(items, lambda item: item["id"], cursor)
        seen += page
        if after is None:
            break
        assert page
        cursor = after
    assert seen == items


def test_a_cursor_that_is_gone_is_an_error() -> None:
    with pytest.raises(RequestError, match="start again without a cursor"):
        page_of(["a"], str, "b")
