"""Configuration files of users keep everything but our entry, byte for byte."""

from __future__ import annotations

import json
import string
import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tomlkit")

from ajet_cli.assist import jsonc, toml
from tests.support.tiers import examples

ENTRY = {"servers": {"agentjet": {"command": "/py", "args": ["-m", "x"]}}}
COMMENTED = """\
// What this is
{
    "theme": "dark", /* inline */
    "servers": {
        "other": {"command": "é", "args": [1, 2.5e3, null,]}, // trailing
        // the last word
    },
    "after": [ true,false ]
}
"""
KEYS = st.text(string.ascii_letters, min_size=1, max_size=4)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(KEYS | st.just("servers"), VALUES, max_size=5)
SPACE = st.sampled_from(["", " ", "\n", "\r\n", "\t", "// note\n", '/* {" */', "\n\n  "])

ENDS: st.SearchStrategy[Any] = st.booleans()


def is_subsequence(text: str, of: str) -> bool:
    rest = iter(of)
    return all(character in rest for character in text)


@st.composite
def written(draw: st.DrawFn, value: Any) -> str:
    """JSON with spaces, comments and commas where they are allowed."""

    def text(value: Any) -> str:
        if isinstance(value, dict | list):
            pairs = value.items() if isinstance(value, dict) else ((None, v) for v in value)
            items = []
            for key, item in pairs:
                name = "" if key is None else json.dumps(key) + draw(SPACE) + ":" + draw(SPACE)
                items.append(draw(SPACE) + name + text(item) + draw(SPACE))
            comma = "," + draw(SPACE) if items and draw(ENDS) else ""
            first, last = "{}" if isinstance(value, dict) else "[]"
            return first + (",".join(items) + comma or draw(SPACE)) + last
        return json.dumps(value)

    return draw(SPACE) + text(value) + draw(SPACE)


@settings(deadline=None, max_examples=examples(50))
@given(st.data(), OBJECTS)
def test_any_object_gets_the_entry_and_keeps_its_text(data: st.DataObject, value: Any) -> None:
    text = data.draw(written(value))
    assert jsonc.parse(text).value == value
    if not isinstance(value.get("servers", {}), dict):
        with pytest.raises(ValueError, match="servers is not an object"):
            jsonc.merged(text, ENTRY)
        return
    after = jsonc.merged(text, ENTRY)
    expected = value | {"servers": value.get("servers", {}) | ENTRY["servers"]}
    assert jsonc.parse(after).value == expected
    assert is_subsequence(text, after)
    assert jsonc.merged(after, ENTRY) == after


def test_comments_commas_and_indentation_stay() -> None:
    assert jsonc.merged(COMMENTED, ENTRY) == COMMENTED.replace(
        "        // the last word\n",
        "        // the last word\n"
        '        "agentjet": {\n'
        '            "command": "/py",\n'
        '            "args": [\n'
        '                "-m",\n'
        '                "x"\n'
        "            ]\n"
        "        }\n",
    )


def test_an_older_entry_changes_alone_and_keeps_the_keys_of_the_user() -> None:
    text = '{"servers": {"agentjet": {"args": ["old"], "mine": 1, "command": "/py"}}, "x": [1]}'
    assert jsonc.merged(text, ENTRY).replace("\n", "").replace(" ", "") == text.replace(
        '["old"]', '["-m","x"]'
    ).replace(" ", "")


def test_line_ends_of_windows_stay() -> None:
    after = jsonc.merged('{\r\n  "a": 1\r\n}\r\n', ENTRY)
    assert after.count("\n") == after.count("\r\n")
    assert json.loads(after) == {"a": 1} | ENTRY


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "{'a': 1}",
        '{"a" 1}',
        '{"a": 1} x',
        "[1]",
        '{"a": 01}',
        '{"a": "\n"}',
        "{,}",
        "[" * 5000,
    ],
    ids=range(9),
)
def test_what_is_not_an_object_of_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"line|object|deep"):
        jsonc.merged(text, ENTRY)


def test_a_key_that_is_there_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="servers is there more than once"):
        jsonc.merged('{"servers": {}, "servers": {}}', ENTRY)


TOML = """\
# mine
model = "o3"  # the best

[mcp_servers.other]   # another
command = "x"
args = [
  "a", # first
]

[profiles.p]
model = "q"
"""


@pytest.mark.parametrize(
    "text",
    [
        TOML,
        TOML.rstrip(),
        "",
        "a = 1",
        '[servers]\nx = {y = "1"}\n[z]\n',
        "[servers.agentjet.env]\nA = '1'\n",
        "[servers.agentjet]\nargs = ['old']  # note\nmine = 1\n[servers.agentjet.env]\nA = '1'\n",
        TOML.replace("\n", "\r\n"),
    ],
    ids=range(8),
)
def test_toml_keeps_comments_and_form(text: str) -> None:
    after = toml.merged(text, ENTRY)
    data = tomllib.loads(text)
    ours = data.get("servers", {}).get("agentjet", {}) | ENTRY["servers"]["agentjet"]
    assert tomllib.loads(after) == data | {"servers": data.get("servers", {}) | {"agentjet": ours}}
    assert is_subsequence(text.replace("['old']", "").rstrip("\r\n"), after)
    assert toml.merged(after, ENTRY) == after


def test_toml_that_cannot_be_parsed_or_has_another_form_is_refused() -> None:
    with pytest.raises(ValueError, match="line 1"):
        toml.merged("a = = 1", ENTRY)
    with pytest.raises(ValueError, match="servers is not a table"):
        toml.merged("servers = 1", ENTRY)
