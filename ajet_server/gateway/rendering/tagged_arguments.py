"""Arguments of tool calls that models write between tags, read as the templates write them: no character is taken off."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from ajet_server.gateway.rendering.messages import ToolSpec

# Templates write these as Python does (Qwen 3.5) or as JSON does.
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
    """Texts with names, each between two tags, one behind the other.

    :param opening: up to where the text begins; its group is the name.
    :param closing: what ends the text.
    :param following: what stands behind the end. A closing tag with something else behind it is part of the text.
    :param newline: whether templates write a line break before `closing` that is not part of the text.
    """

    opening: re.Pattern[str]
    closing: str
    following: re.Pattern[str]
    newline: bool = False

    def texts(self, block: str) -> list[tuple[str, str]]:
        """Names and texts in order.

        :raises ValueError: one has no end.
        """
        found: list[tuple[str, str]] = []
        at = 0
        while (begun := self.opening.search(block, at)) is not None:
            end = self._end(block, begun.end())
            text = block[begun.end() : end]
            found.append((begun[1].strip(), text.removesuffix("\n") if self.newline else text))
            at = end + len(self.closing)
        return found

    def _end(self, block: str, start: int) -> int:
        first = end = block.find(self.closing, start)
        if first < 0:
            raise ValueError(f"no {self.closing} follows")
        # Behind another opening it is more likely the end of that text than of this one.
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
    """How a family of models writes calls whose arguments stand between tags.

    :param arguments: the tags around each argument of a call.
    :param end: ends a call and its block after the last argument.
    :param calls: the tags around each call in a block; None if a block is one call.
    """

    arguments: _Tags
    end: str
    calls: _Tags | None = None

    def read(
        self, name: str, block: str, tools: Sequence[ToolSpec] | None
    ) -> list[tuple[str, dict[str, Any]]]:
        """The calls of a block, each with its arguments.

        :param name: of the function, where the block is one call.
        :param block: what the model wrote between the tags of the block.
        :raises ValueError: there is no call in it, an argument has no end, or one is nothing that its schema allows.
        """
        bodies = [(name, block)] if self.calls is None else self.calls.texts(block)
        if not bodies:
            raise ValueError("no call is in it")
        return [
            (called, _values(self.arguments.texts(body), _schema_of(called, tools)))
            for called, body in bodies
        ]

    def completion(self, block: str) -> str:
        """What completes a block that breaks off behind an argument or within one."""
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
"""By renderer; the others write arguments as JSON, or in quotes."""


def _schema_of(name: str, tools: Sequence[ToolSpec] | None) -> dict[str, Any]:
    """The schema of a function's arguments, {} if it is not known."""
    for tool in tools or ():
        function = tool.get("function")
        if isinstance(function, dict) and function.get("name") == name:
            schema = function.get("parameters")
            return schema if isinstance(schema, dict) else {}
    return {}


def takes_only_text(name: str, argument: str, tools: Sequence[ToolSpec] | None) -> bool:
    """Whether an argument of a function is a string, whatever is written."""
    return _argument_types(argument, _schema_of(name, tools)) == {"string"}


def _values(texts: Sequence[tuple[str, str]], schema: dict[str, Any]) -> dict[str, Any]:
    return {key: argument_value(text, _argument_types(key, schema)) for key, text in texts}


def _argument_types(key: str, schema: dict[str, Any]) -> frozenset[str]:
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        properties = {}
    return _types(properties.get(key, schema.get("additionalProperties")), schema)


def argument_value(text: str, types: frozenset[str]) -> Any:
    """The value that a text between tags stands for.

    Templates write strings as they are and everything else as JSON, so a text alone does not tell a string from
    another value. If strings are allowed, it is something else only if that has an allowed type and would be written
    with these very characters; of objects and lists, white space within does not count.

    :param types: names of JSON types that are allowed.
    :raises ValueError: it is no JSON, and strings are not allowed.
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
    raise ValueError(f"{name} is no JSON")


def _types(schema: Any, root: dict[str, Any], depth: int = 0) -> frozenset[str]:
    """The names of JSON types that a schema allows; all of them where it does not say."""
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
    """The part of `root` that a reference such as ``#/$defs/Name`` names; None if there is none."""
    found: Any = root
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    for name in reference[2:].split("/"):
        found = found.get(name) if isinstance(found, dict) else None
    return found
