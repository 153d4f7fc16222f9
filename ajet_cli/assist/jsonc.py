"""Merging values into a JSON file that may have comments; the rest of its text is unchanged."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_SPACE = re.compile(r"(?:[ \t\r\n]|//[^\r\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_SCALAR = re.compile(r"-?\d[-+.0-9eE]*|true|false|null")
_UNIT = "  "


@dataclass(slots=True)
class Node:
    """A value in a text, which it takes from `start` to before `end`.

    :ivar members: of an object, by key; None for other values.
    :ivar repeated: keys that an object has more than once.
    """

    start: int
    end: int
    value: Any
    members: dict[str, Node] | None = None
    repeated: set[str] = field(default_factory=set)


def parse(text: str) -> Node:
    """Parse JSON, in which comments and commas before the end of an object or list are allowed.

    :raises ValueError: it is not that.
    """
    reader = _Reader(text)
    try:
        node = reader.value(reader.space(1 if text.startswith("\ufeff") else 0))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if (end := reader.space(node.end)) != len(text):
        raise ValueError(f"line {_line(text, end)}: text after the end")
    return node


def merged(text: str, changes: Mapping[str, Any]) -> str:
    """Return `text` with `changes` merged in: objects by key, other values replaced.

    :param text: with an object; "" for a new file.
    :raises ValueError: it cannot be parsed, or something else is where an object is needed.
    """
    text = text if text.strip() else "{}\n"
    before = parse(text).value
    result = _merged(text, (), changes)
    # What is written must be what was meant, whatever the text looks like.
    if parse(result).value != _expected(before, changes):
        raise ValueError("it has a form that cannot be changed safely")
    return result


def _merged(text: str, path: tuple[str, ...], changes: Mapping[str, Any]) -> str:
    for key, value in changes.items():
        node = parse(text)
        for step in path:
            assert node.members is not None
            node = node.members[step]
        if node.members is None:
            raise ValueError(f"{'.'.join(path) or 'it'} is not an object")
        if key in node.repeated:
            raise ValueError(f"{'.'.join((*path, key))} is there more than once")
        if key not in node.members:
            text = _inserted(text, node, key, value)
        elif isinstance(value, Mapping):
            text = _merged(text, (*path, key), value)
        elif (old := node.members[key]).value != value:
            indent = _indent_at(text, old.start)
            text = text[: old.start] + _dumped(text, value, indent) + text[old.end :]
    return text


def _inserted(text: str, node: Node, key: str, value: Any) -> str:
    """Return the text with a new last member of an object."""
    assert node.members is not None
    close = node.end - 1
    last = max(node.members.values(), key=lambda member: member.end, default=None)
    begin = last.end if last else node.start + 1
    after = text[begin:close]
    # Comments after the last member stay with it.
    anchor = begin + len(after.rstrip())
    base = _indent_at(text, node.start)
    indent = base + _unit(text)
    if last is not None:
        own_line = _indent_at(text, last.start)
        indent = own_line if len(own_line) > len(base) else indent
    newline = "\r\n" if "\r\n" in text else "\n"
    comma = "," if last is not None and not _has_comma(after) else ""
    member = f"{newline}{indent}{json.dumps(key)}: {_dumped(text, value, indent)}"
    closing = "" if "\n" in text[anchor:close] else newline + base
    return text[:begin] + comma + text[begin:anchor] + member + closing + text[anchor:]


def _has_comma(after: str) -> bool:
    """Whether a comma follows the last member, outside comments."""
    start = _SPACE.match(after)
    assert start is not None
    return after[start.end() :].startswith(",")


def _dumped(text: str, value: Any, indent: str) -> str:
    lines = json.dumps(value, indent=_unit(text), ensure_ascii=False).splitlines()
    newline = "\r\n" if "\r\n" in text else "\n"
    return f"{newline}{indent}".join(lines)


def _unit(text: str) -> str:
    """Return the text's indentation of one level."""
    match = re.search(r"^([ \t]+)\"", text, re.MULTILINE)
    return match.group(1) if match else _UNIT


def _indent_at(text: str, position: int) -> str:
    """Return the indentation of the line of a position."""
    start = text.rfind("\n", 0, position) + 1
    match = re.match(r"[ \t]*", text[start:position])
    return match.group() if match else ""


def _expected(before: Any, changes: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(before)
    for key, value in changes.items():
        inside = isinstance(value, Mapping) and key in result
        result[key] = _expected(result[key], value) if inside else value
    return result


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text

    def space(self, position: int) -> int:
        """Return the end of the white space and comments at a position."""
        match = _SPACE.match(self._text, position)
        assert match is not None
        return match.end()

    def value(self, position: int) -> Node:
        """Return the value at a position."""
        if self._text.startswith("{", position):
            return self._object(position)
        if self._text.startswith("[", position):
            return self._list(position)
        match = _STRING.match(self._text, position) or _SCALAR.match(self._text, position)
        if match is None:
            raise self._error(position, "a value is missing")
        try:
            return Node(position, match.end(), json.loads(match.group()))
        except ValueError:
            raise self._error(position, f"{match.group()[:40]} is not JSON") from None

    def _object(self, position: int) -> Node:
        node = Node(position, position, {}, {})
        assert node.members is not None
        at = self.space(position + 1)
        while not self._text.startswith("}", at):
            key = _STRING.match(self._text, at)
            if key is None:
                raise self._error(at, "a key is missing")
            name = str(self.value(at).value)
            at = self.space(key.end())
            if not self._text.startswith(":", at):
                raise self._error(at, "a colon is missing")
            member = self.value(self.space(at + 1))
            if name in node.members:
                node.repeated.add(name)
            node.members[name], node.value[name] = member, member.value
            at = self._next(member.end, "}")
        node.end = at + 1
        return node

    def _list(self, position: int) -> Node:
        node = Node(position, position, [])
        at = self.space(position + 1)
        while not self._text.startswith("]", at):
            item = self.value(at)
            node.value.append(item.value)
            at = self._next(item.end, "]")
        node.end = at + 1
        return node

    def _next(self, end: int, close: str) -> int:
        """Return where the next member begins, or where `close` is."""
        at = self.space(end)
        if self._text.startswith(",", at):
            return self.space(at + 1)
        if not self._text.startswith(close, at):
            raise self._error(at, f"a comma or {close} is missing")
        return at

    def _error(self, position: int, what: str) -> ValueError:
        return ValueError(f"line {_line(self._text, position)}: {what}")
