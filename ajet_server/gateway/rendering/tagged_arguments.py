"""Read the arguments of tool calls that models write between tags, keeping every character."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from ajet_server.gateway.rendering.messages import ToolSpec

# Templates write these as in Python (Qwen 3.5) or as in JSON.
_PYTHON_WORDS = {"True": True, "False": False, "None": None}
_JSON_TYPES: dict[type, frozenset[str]] = {
    str: frozenset({"string"}),
    bool: frozenset({"boolean"}),
    int: frozenset({"integer", "number"}),
    float: frozenset({"number"}),
    dict: frozenset({"object"}),
    list: frozenset({"array"}),
    type(None): frozenset({"null"}),
}
_ANY = frozenset[str]().union(*_JSON_TYPES.values())
# Schemas may refer to themselves.
_MAX_DEPTH = 8


@dataclass(frozen=True, slots=True)
class _Tags:
    """The tags around a sequence of named texts.

    :param opening: matches the opening tag; its group is the name.
    :param closing: the closing tag.
    :param following: matches what can follow the closing tag. A closing tag that is followed by
        something else is part of the text.
    :param newline: whether templates write a line break before `closing` that is not part of the
        text.
    """

    opening: re.Pattern[str]
    closing: str
    following: re.Pattern[str]
    newline: bool = False

    def texts(self, block: str) -> list[tuple[str, str]]:
        """Return the names and texts in order.

        :raises ValueError: a text has no closing tag.
        """
        texts: list[tuple[str, str]] = []
        at = 0
        while (begun := self.opening.search(block, at)) is not None:
            end = self._end(block, begun.end())
            text = block[begun.end() : end]
            texts.append((begun[1].strip(), text.removesuffix("\n") if self.newline else text))
            at = end + len(self.closing)
        return texts

    def _end(self, block: str, start: int) -> int:
        first = end = block.find(self.closing, start)
        if first < 0:
            raise ValueError(f"closing {self.closing} is missing")
        # A closing tag after another opening tag more likely ends that text.
        more = self.opening.search(block, first)
        limit = len(block) if more is None else more.start()
        while end >= 0:
            behind = end + len(self.closing)
            if self.following.match(block, behind):
                return end
            end = block.find(self.closing, behind, limit)
        return first


@dataclass(frozen=True, slots=True)
class TaggedArguments:
    """The format of a family of models that writes arguments between tags.

    :param arguments: tags around each argument of a call.
    :param end: text that ends a call and its block after the last argument.
    :param calls: tags around each call in a block; None if a block is one call.
    """

    arguments: _Tags
    end: str
    calls: _Tags | None = None

    def read(
        self, name: str, block: str, tools: Sequence[ToolSpec] | None
    ) -> list[tuple[str, dict[str, Any]]]:
        """Return the calls of a block, each with its arguments.

        :param name: name of the function, if the block is one call.
        :param block: text between the tags of the block.
        :raises ValueError: the block has no call, an argument has no closing tag, or its schema
            does not allow it.
        """
        bodies = [(name, block)] if self.calls is None else self.calls.texts(block)
        if not bodies:
            raise ValueError("it contains no call")
        return [
            (called, _values(self.arguments.texts(body), _schema_of(called, tools)))
            for called, body in bodies
        ]

    def completion(self, block: str) -> str:
        """Return the text that completes a block that ends after an argument or within one."""
        within = [match.end() for match in self.arguments.opening.finditer(block)]
        closed = block.rfind(self.arguments.closing)
        return (self.arguments.closing if within and within[-1] > closed else "") + self.end


def _key_and_value(suffix: str = "") -> TaggedArguments:
    key, value = f"arg_key{suffix}", f"arg_value{suffix}"
    return TaggedArguments(
        _Tags(
            re.compile(rf"<{key}>([^<>]*)</{key}>\s*<{value}>"),
            f"</{value}>",
            re.compile(rf"\s*(?:<{key}>|\Z)"),
        ),
        f"\n</tool_call{suffix}>",
    )


_PARAMETERS = TaggedArguments(
    _Tags(
        re.compile(r"<parameter=([^<>\n]+)>\n?"),
        "</parameter>",
        re.compile(r"\s*(?:<parameter=|(?:</function>\s*)?(?:<function=|\Z))"),
        newline=True,
    ),
    "\n</function>\n</tool_call>",
)
_INVOKED = TaggedArguments(
    _Tags(
        re.compile(r'<parameter name="([^"<>\n]+)">'),
        "</parameter>",
        re.compile(r"\s*(?:<parameter |\Z)"),
    ),
    "\n</invoke>\n</minimax:tool_call>",
    _Tags(
        re.compile(r'<invoke name="([^"<>\n]+)">'),
        "</invoke>",
        re.compile(r"\s*(?:<invoke |\Z)"),
    ),
)
_PAIRS = _key_and_value()

TAGGED_FAMILIES: Mapping[str, TaggedArguments] = {
    **dict.fromkeys(("prime-qwen3", "qwen3.5", "qwen3.6", "qwen3.8"), _PARAMETERS),
    **dict.fromkeys(("nemotron-3", "nemotron-3-ultra", "nemotron-3.5"), _PARAMETERS),
    **dict.fromkeys(("glm-4.5", "glm-5", "glm-5.1", "glm-5.3"), _PAIRS),
    **dict.fromkeys(("laguna-xs.2", "laguna-m.1", "laguna-xs-2.1", "laguna-s-2.1"), _PAIRS),
    "hy3": _key_and_value(":opensource"),
    "minimax-m2": _INVOKED,
}
"""Formats by renderer; other renderers write arguments as JSON, or in quotes."""


def _schema_of(name: str, tools: Sequence[ToolSpec] | None) -> dict[str, Any]:
    """Return the schema of a function's arguments, {} if it is unknown."""
    for tool in tools or ():
        function = tool.get("function")
        if isinstance(function, dict) and function.get("name") == name:
            schema = function.get("parameters")
            return schema if isinstance(schema, dict) else {}
    return {}


def takes_only_text(name: str, argument: str, tools: Sequence[ToolSpec] | None) -> bool:
    """Whether the schema allows only a string for an argument of a function."""
    return _argument_types(argument, _schema_of(name, tools)) == {"string"}


def _values(texts: Sequence[tuple[str, str]], schema: dict[str, Any]) -> dict[str, Any]:
    return {key: argument_value(text, _argument_types(key, schema)) for key, text in texts}


def _argument_types(key: str, schema: dict[str, Any]) -> frozenset[str]:
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        properties = {}
    return _types(properties.get(key, schema.get("additionalProperties")), schema)


def argument_value(text: str, types: frozenset[str]) -> Any:
    """Return the value that a text between tags represents.

    Templates write strings verbatim and everything else as JSON, so a text can be ambiguous. If
    strings are allowed, the text is another value only if that value has an allowed type and would
    be written with exactly these characters; white space in objects and lists does not count.

    :param types: names of the allowed JSON types.
    :raises ValueError: the text is not JSON, and strings are not allowed.
    """
    if "string" not in types:
        word = text.strip()
        return _PYTHON_WORDS[word] if word in _PYTHON_WORDS else _json(text)
    if types == {"string"} or text != text.strip():
        return text
    try:
        value = _json(text)
    except ValueError:
        return text
    exact = isinstance(value, dict | list) or (
        not isinstance(value, str) and json.dumps(value) == text
    )
    return value if exact and types & _JSON_TYPES[type(value)] else text


def _json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_number)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not valid JSON")


def _types(schema: Any, root: dict[str, Any], depth: int = 0) -> frozenset[str]:
    """Return the names of the JSON types that a schema allows, by default all."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return _ANY
    allowed = _ANY
    declared = schema.get("type")
    if isinstance(declared, str):
        allowed &= _named(declared)
    elif isinstance(declared, list):
        allowed &= frozenset[str]().union(*map(_named, declared))
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list):
        allowed &= frozenset[str]().union(*(_JSON_TYPES.get(type(v), _ANY) for v in values))
    for key in ("anyOf", "oneOf"):
        branches = schema.get(key)
        if isinstance(branches, list) and branches:
            allowed &= frozenset[str]().union(*(_types(b, root, depth + 1) for b in branches))
    parts = schema.get("allOf")
    for part in parts if isinstance(parts, list) else ():
        allowed &= _types(part, root, depth + 1)
    if "$ref" in schema:
        allowed &= _types(_referred(schema["$ref"], root), root, depth + 1)
    return allowed or _ANY


def _named(name: object) -> frozenset[str]:
    if name == "number":
        return frozenset({"number", "integer"})
    return frozenset({name}) & _ANY if isinstance(name, str) else frozenset()


def _referred(reference: object, root: dict[str, Any]) -> Any:
    """Return the part of `root` at a reference such as ``#/$defs/Name``, None if there is none."""
    part: Any = root
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    for name in reference[2:].split("/"):
        part = part.get(name) if isinstance(part, dict) else None
    return part
