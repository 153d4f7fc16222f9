"""The page, before a browser sees it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from ajet_core.interfaces import WorkerContext
from ajet_server.embedded.settings import SqliteStoreSettings
from ajet_server.observe.timeline_view import episode_timelines, merge_episode
from ajet_server.page.page_data import PageData
from ajet_server.page.summary import EpisodeSummary
from ajet_server.page.token_texts import TokenTexts
from ajet_server.page.viewer_page import embedded_json, page
from ajet_server.store.sqlite_store import SqliteStore
from ajet_server.store.store_reader import StoredEpisode, StoreReader
from tests.inspect.recorded import HOSTILE, Recording, trie

Made = Callable[..., dict[str, Any]]


@pytest.fixture
def made(run_dir: Path, recording: Recording) -> Made:
    """Makes the data of a page about the two episodes of the step."""

    def make(max_tokens: int = 10**6, model: Path | None = recording.model_dir) -> dict[str, Any]:
        data = PageData(f"title {HOSTILE}", "run-1", TokenTexts.load(model), max_tokens)

        async def read() -> list[StoredEpisode]:
            store = SqliteStore(SqliteStoreSettings(), WorkerContext(run_dir))
            async with StoreReader(store, run_dir) as reader:
                return [await reader.load(i) for i in ("ep-aaa1", "ep-aab2")]

        for stored in asyncio.run(read()):
            merged = merge_episode(stored.record.episode_id, stored.calls, trie())
            data.add(
                EpisodeSummary.of(stored, merged),
                episode_timelines(stored.record, merged, stored.scores),
            )
        return data.as_json(["a sentence"])

    return make


class Elements(HTMLParser):
    """The elements of a page with their attributes, and the texts of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._open = tag

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        self.texts.append((self._open, data))


def sha(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def test_hostile_texts_add_no_element(made: Made) -> None:
    tags = [tag for tag, _ in Elements(page(made())).found]
    assert tags.count("script") == 2
    assert "img" not in tags
    assert "b" not in tags


def test_hostile_texts_arrive_unchanged(made: Made) -> None:
    data = made()
    elements = Elements(page(data))
    (embedded,) = (text for tag, text in elements.texts if tag == "script" and text.startswith("{"))
    assert json.loads(embedded) == json.loads(json.dumps(data))
    assert any(call["agent"] == f"<b>{HOSTILE}" for call in data["episodes"][0]["calls"])


def test_the_policy_allows_this_script_and_style_and_nothing_else(made: Made) -> None:
    elements = Elements(page(made()))
    (policy,) = (
        attributes["content"]
        for tag, attributes in elements.found
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    (script,) = (text for tag, text in elements.texts if tag == "script" and text[0] != "{")
    (style,) = (text for tag, text in elements.texts if tag == "style")
    assert policy == (
        f"default-src 'none'; script-src 'sha256-{sha(script)}'; style-src 'sha256-{sha(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def test_the_policy_comes_before_everything_it_is_about(made: Made) -> None:
    tags = [(tag, "http-equiv" in attributes) for tag, attributes in Elements(page(made())).found]
    assert tags.index(("meta", True)) < tags.index(("style", False)) < tags.index(("script", False))


def test_nothing_is_loaded_and_no_attribute_holds_code(made: Made) -> None:
    for _, attributes in Elements(page(made())).found:
        assert not {"src", "href", "style", "action"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]


def test_no_script_parses_html_or_text_as_code() -> None:
    directory = Path(__file__).parents[2] / "ajet_server" / "page" / "viewer"
    files = sorted(directory.glob("*.js"))
    assert len(files) >= 6
    requests = r"fetch\(|XMLHttpRequest|WebSocket|import\("
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function",
            text,
        ), file.name
        # Only the live page requests its data, and from its own server.
        allowed = int(file.name == "main.js")
        assert len(re.findall(requests, text)) == allowed, file.name
        assert "</script" not in text, file.name


@pytest.mark.parametrize("text", ["</script>", "<!--", "&lt;", "\u2028"])
def test_embedded_json_cannot_leave_its_element(text: str) -> None:
    embedded = embedded_json([text])
    assert not set("<>&\u2028") & set(embedded)
    assert json.loads(embedded) == [text]


def test_each_tokens_text_is_there_once(made: Made) -> None:
    data = made()
    used = {str(i) for e in data["episodes"] for node in e["nodes"] for i in node["ids"]}
    assert set(data["vocabulary"]) == used


def test_parts_of_characters_are_bytes(made: Made, recording: Recording) -> None:
    first, second = recording.ids("\u00e9")
    vocabulary = made()["vocabulary"]
    assert (vocabulary[str(first)], vocabulary[str(second)]) == ([0xC3], [0xA9])


def test_what_had_no_effect_is_there(made: Made, recording: Recording) -> None:
    ignored = [[call["ignored"] for call in e["calls"]] for e in made()["episodes"]]
    assert ignored[0] == [""] * 5
    assert ignored[1] == ["metadata,tools[1]"]


def test_without_a_tokenizer_the_page_says_so(made: Made, tmp_path: Path) -> None:
    data = made(model=tmp_path / "gone")
    assert data["vocabulary"] == {}
    assert "gone" in data["textProblem"]


def test_a_full_page_says_what_it_lacks(made: Made) -> None:
    whole = made()
    tokens = [sum(len(node["ids"]) for node in e["nodes"]) for e in whole["episodes"]]
    data = made(max_tokens=100)
    first, second = data["episodes"]
    assert sum(len(node["ids"]) for node in first["nodes"]) == 100
    assert first["cut"] == tokens[0] - 100
    assert (second["nodes"], second["calls"], second["cut"]) == ([], [], tokens[1])
    assert data["tokensCut"] == sum(tokens) - 100
    assert second["summary"]["tokens"] == tokens[1]


def test_a_page_that_just_fits_lacks_nothing(made: Made) -> None:
    data = made()
    tokens = sum(len(node["ids"]) for e in data["episodes"] for node in e["nodes"])
    assert made(max_tokens=tokens)["tokensCut"] == 0
