"""What is new in running calls for a viewer, however the looks fall."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_server.gateway.running_calls import RunningCall, RunningSnapshot
from ajet_server.page.running_texts import RunningReader
from ajet_server.page.token_texts import TokenTexts
from ajet_testing.servers import write_scripted_model


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> TokenTexts:
    return TokenTexts.load(write_scripted_model(tmp_path_factory.mktemp("models") / "model"))


def _ids(texts: TokenTexts, text: str) -> list[int]:
    """Ids of single bytes, so that characters are divided between tokens."""
    by_byte = {texts.piece(token_id): token_id for token_id in range(400)}
    return [by_byte[bytes([byte])] for byte in text.encode()]


def _look(ids: list[int], seen: int, keeps: int = 10**6, call_id: str = "c") -> RunningSnapshot:
    shown = ids[max(seen, len(ids) - keeps) :]
    return RunningSnapshot(
        [RunningCall(call_id, "solver", 5.0, len(ids), shown, 3 if ids else None)]
    )


@given(data=st.data(), text=st.text(min_size=1, max_size=30))
def test_the_pieces_are_the_text(texts: TokenTexts, data: st.DataObject, text: str) -> None:
    # JSON has no half of a surrogate pair, and models write bytes.
    text = text.encode("utf-8", "replace").decode()
    ids = _ids(texts, text)
    ends = data.draw(st.lists(st.integers(0, len(ids)), max_size=6).map(sorted))
    reader = RunningReader(texts)
    written, at = "", 0
    for end in [*ends, len(ids)]:
        news = reader.news(_look(ids[:end], reader.seen.get("c", 0)))
        if news is not None:
            (call,) = news.calls
            assert call.first == at
            written += call.text
            at = call.tokens
    assert written == text


def test_nothing_new_is_no_news(texts: TokenTexts) -> None:
    reader = RunningReader(texts)
    ids = _ids(texts, "hello")
    assert reader.news(RunningSnapshot([])) is not None
    assert reader.news(RunningSnapshot([])) is None
    assert reader.news(_look(ids, 0)) is not None
    assert reader.news(_look(ids, 5)) is None
    # The call has ended.
    assert reader.news(RunningSnapshot([])) is not None
    assert reader.seen == {}


def test_tokens_that_are_left_out_are_counted(texts: TokenTexts) -> None:
    reader = RunningReader(texts)
    ids = _ids(texts, "ä long answer")
    first = reader.news(_look(ids[:1], 0))
    assert first is not None
    assert first.calls[0].text == ""
    news = reader.news(_look(ids, 1, keeps=6))
    assert news is not None
    (call,) = news.calls
    # The half of a character does not spoil what follows.
    assert (call.first, call.tokens, call.text) == (len(ids) - 6, len(ids), "answer")


def test_another_call_with_the_same_id_begins_anew(texts: TokenTexts) -> None:
    reader = RunningReader(texts)
    reader.news(_look(_ids(texts, "hello"), 0))
    again = _ids(texts, "hi")
    first = reader.news(_look(again, 5))
    assert first is not None
    assert (first.calls[0].first, first.calls[0].text) == (0, "")
    second = reader.news(_look(again, 0))
    assert second is not None
    assert (second.calls[0].first, second.calls[0].text) == (0, "hi")


def test_without_a_tokenizer_ids_are_shown() -> None:
    reader = RunningReader(TokenTexts.load(Path("/nowhere")))
    news = reader.news(_look([7, 8], 0))
    assert news is not None
    assert news.calls[0].text == "<7><8>"
