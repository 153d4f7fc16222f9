"""Parts of documents."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_core.errors import ConfigError
from ajet_sources.generation.documents import read_documents, spans

TEXTS = st.text(st.sampled_from("ab .?#\n\r\t\u00e9\U0001f600"), max_size=300)


@given(TEXTS, st.integers(5, 60))
def test_parts_have_all_text_in_order_and_none_is_too_long(text: str, most: int) -> None:
    parts = list(spans(text, most))
    assert all(0 < end - start <= most for start, end in parts)
    assert all(one[1] <= other[0] for one, other in pairwise(parts))
    edges = [0, *(edge for part in parts for edge in part), len(text)]
    between = [text[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True)]
    assert "".join(between).strip() == ""


def test_paragraphs_stay_whole_and_a_heading_stays_with_its_text() -> None:
    text = "first paragraph\n\nsecond one\n\n# Heading\n\nthird paragraph, under it"
    assert [text[a:b] for a, b in spans(text, 40)] == [
        "first paragraph\n\nsecond one",
        "# Heading\n\nthird paragraph, under it",
    ]


def test_a_long_paragraph_is_divided_between_sentences() -> None:
    text = "One sentence is here. Another is there. A third."
    assert [text[a:b] for a, b in spans(text, 30)] == [
        "One sentence is here.",
        "Another is there. A third.",
    ]


def test_a_directory_is_read_by_name(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.md", "a/skip.png", ".hidden/x.md", "c.RST"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    parts = read_documents([tmp_path, tmp_path / "b.txt"], 100)
    assert [part.text for part in parts] == ["a/z.md", "b.txt", "c.RST", "b.txt"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("paper.pdf", b"%PDF", ".pdf files are not read"),
        ("latin.txt", b"caf\xe9", "not text in UTF-8"),
        ("empty.md", b" \n\n ", "there is no text"),
    ],
)
def test_what_cannot_be_read_is_named(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_documents([tmp_path / name], 100)


def test_offsets_count_characters_as_the_file_has_them(tmp_path: Path) -> None:
    content = "\u00e9\r\n\r\nsecond\r\n"
    (tmp_path / "x.md").write_bytes(content.encode())
    (part,) = read_documents([tmp_path / "x.md"], 100)
    assert content[part.start : part.end] == part.text == "\u00e9\r\n\r\nsecond"
