"""Express constraints on an answer as a grammar that an engine can enforce.

Grammars are in the Lark syntax of ``llguidance``: ``%json`` matches everything that fits a JSON
schema, ``<[5]>`` the token with id 5.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ajet_core.errors import UnsupportedError
from ajet_server.gateway.rendering.messages import ToolSpec
from ajet_server.gateway.rendering.renderer import ChatRenderer

_OBJECT: dict[str, Any] = {"type": "object"}
# What programs write between values: a space, or a line break and an indentation.
_WHITE_SPACE = r"( |\n[ \t]{0,32})?"


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """Requires the answer to be JSON.

    :param schema: JSON text of the schema; "" accepts any object.
    :param param: name of the request parameter that requires it.
    """

    schema: str
    param: str


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether the model must call tools.

    :param forced: whether the model must call a tool.
    :param names: the tools that the model may choose from; () for all.
    :param single: whether the model must call at most one tool.
    :param param: name of the request parameter that requires this.
    """

    forced: bool = False
    names: tuple[str, ...] = ()
    single: bool = False
    param: str = "tool_choice"

    @property
    def is_free(self) -> bool:
        """Whether the choice is left to the model."""
        return not (self.forced or self.single)


FREE_CHOICE = ToolChoice()


@dataclass(frozen=True, slots=True)
class _CallFormat:
    """How a family of models writes a call: texts around an object with the name and arguments."""

    begin: str
    end: str
    between: str
    arguments: str = "arguments"


# The model's own parser decides whether the model uses one of them.
_FORMATS = (
    _CallFormat("<tool_call>\n", "\n</tool_call>", "\n"),
    _CallFormat("<tool_call>", "</tool_call>", ""),
)
_PROBE: ToolSpec = {
    "type": "function",
    "function": {"name": "probe", "parameters": {"type": "object", "properties": {}}},
}


class Constraints:
    """Makes grammars for a model's renderer."""

    def __init__(self, renderer: ChatRenderer) -> None:
        self._renderer = renderer
        self._format: _CallFormat | None = None
        self._tried = False

    def answer(self, wanted: AnswerFormat) -> str:
        """Return the grammar of an answer that is JSON.

        :raises UnsupportedError: the model's answers begin with reasoning.
        """
        return f"start: {self._json(wanted)}\n"

    def calls(self, choice: ToolChoice, tools: Sequence[ToolSpec]) -> str:
        """Return the grammar of an answer that calls tools as `choice` requires.

        :raises UnsupportedError: the model's call format is unknown, or no tool has the given name.
        """
        calls, rules = self._calls(choice, tools, choice.param)
        if choice.forced:
            return "\n".join([f"start: {calls}", *rules]) + "\n"
        # Text, then optionally a call. TEXT cannot match the token that begins a call.
        return "\n".join(["start: TEXT call?", *rules, "TEXT: /(?s:.*)/"]) + "\n"

    def calls_or_answer(
        self, choice: ToolChoice, tools: Sequence[ToolSpec], wanted: AnswerFormat
    ) -> str:
        """Return the grammar of an answer that is either tool calls or JSON.

        :raises UnsupportedError: as for `answer` and `calls`.
        """
        json_answer = self._json(wanted)
        calls, rules = self._calls(choice, tools, wanted.param)
        return "\n".join([f"start: {calls} | answer", *rules, f"answer: {json_answer}"]) + "\n"

    def _json(self, wanted: AnswerFormat) -> str:
        probe = self._renderer.encode('{"a": 1}')
        if self._renderer.parse(probe, [], None).content != '{"a": 1}':
            raise UnsupportedError(
                f"{wanted.param} is not supported with this model, because its answers begin "
                "with reasoning",
                param=wanted.param,
            )
        schema = json.loads(wanted.schema) if wanted.schema else _OBJECT
        return f"%json {_with_spaces(schema)}"

    def _calls(
        self, choice: ToolChoice, tools: Sequence[ToolSpec], param: str
    ) -> tuple[str, list[str]]:
        """Return the expression for calls of the tools, and the rules that it uses.

        :param param: name of the request parameter that requires the grammar.
        """
        form = self._call_format()
        if form is None:
            raise UnsupportedError(
                f"{param} is not supported with this model and tools: this server does not "
                "know the model's tool call format",
                param=param,
            )
        offered = [tool["function"]["name"] for tool in tools]
        for name in choice.names:
            if name not in offered:
                raise UnsupportedError(
                    f"{choice.param}: no tool is named {name[:80]!r}", param=choice.param
                )
        named = [
            tool
            for tool, name in zip(tools, offered, strict=True)
            if not choice.names or name in choice.names
        ]
        bodies = " | ".join(f"body{i}" for i in range(len(named)))
        rules = [f"call: {self._terminals(form.begin)} ({bodies}) "]
        rules[0] += self._terminals(form.end)
        rules += [f"body{i}: %json {_body(tool, form)}" for i, tool in enumerate(named)]
        more = "" if choice.single else f" ({self._terminals(form.between)} call)*"
        return f"call{more}", rules

    def _call_format(self) -> _CallFormat | None:
        if not self._tried:
            self._tried = True
            self._format = next((form for form in _FORMATS if self._is_written(form)), None)
        return self._format

    def _is_written(self, form: _CallFormat) -> bool:
        body = json.dumps({"name": "probe", form.arguments: {"a": 1}})
        call = f"{form.begin}{body}{form.end}"
        ids = self._renderer.encode(f"{call}{form.between}{call}")
        parsed = self._renderer.parse(ids, [], (_PROBE,))
        calls = [(one.name, _object(one.arguments)) for one in parsed.calls]
        # A marker that is a single token cannot arise from other tokens.
        begins = len(self._renderer.encode(form.begin.strip())) == 1
        return begins and not parsed.malformed and calls == [("probe", {"a": 1})] * 2

    def _terminals(self, text: str) -> str:
        """Return a text as terminals: markers that are tokens by id, everything else literally."""
        if not text:
            return '""'
        marker = text.strip()
        ids = self._renderer.encode(marker) if marker else []
        if len(ids) != 1:
            return json.dumps(text)
        before, _, after = text.partition(marker)
        parts = [json.dumps(before)] if before else []
        parts.append(f"<[{ids[0]}]>")
        parts += [json.dumps(after)] if after else []
        return " ".join(parts)


def _body(tool: ToolSpec, form: _CallFormat) -> str:
    function = tool["function"]
    arguments: dict[str, Any] = function.get("parameters") or _OBJECT
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"name": {"const": function["name"]}, form.arguments: arguments},
        "required": ["name", form.arguments],
        "additionalProperties": False,
    }
    # References are relative to the root of the schema, so definitions must move there.
    for key in ("$defs", "definitions"):
        if key in arguments:
            schema[key] = arguments[key]
    return _with_spaces(schema)


def _with_spaces(schema: dict[str, Any]) -> str:
    """Return a schema as JSON text, with a limit on the white space between values.

    Without a limit, a model eventually writes white space without end.
    """
    return json.dumps({**schema, "x-guidance": {"whitespace_pattern": _WHITE_SPACE}})


def _object(arguments: Any) -> Any:
    return json.loads(arguments) if isinstance(arguments, str) else arguments
