"""What an answer must be, as a grammar that an engine can hold the model to.

Grammars are Lark as ``llguidance`` reads it: ``%json`` stands for everything that fits a JSON schema, ``<[5]>`` for a token.
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
_WHITE_SPACE = r"[ \n\t]{0,32}"


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The answer is JSON.

    :param schema: JSON text; "" asks for any object.
    :param param: of the request, which asks for it.
    """

    schema: str
    param: str


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether the model must call tools.

    :param forced: it must.
    :param name: the one that it must call; "" leaves that to it.
    :param single: it must call no more than one.
    :param param: of the request, which says so.
    """

    forced: bool = False
    name: str = ""
    single: bool = False
    param: str = "tool_choice"

    @property
    def is_free(self) -> bool:
        """The model decides."""
        return not (self.forced or self.single)


FREE_CHOICE = ToolChoice()


@dataclass(frozen=True, slots=True)
class _CallFormat:
    """How a family of models writes a call: these texts around an object with its name and its arguments."""

    begin: str
    end: str
    between: str
    arguments: str = "arguments"


# Whether a model writes them so is tried out with its own parser.
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
        """The grammar of an answer that is JSON.

        :raises UnsupportedError: the model's answers begin with something else.
        """
        return f"start: {self._json(wanted)}\n"

    def calls(self, choice: ToolChoice, tools: Sequence[ToolSpec]) -> str:
        """The grammar of an answer that calls tools as it must.

        :raises UnsupportedError: it is not known how the model writes calls; or there is no such tool.
        """
        calls, rules = self._calls(choice, tools, choice.param)
        if choice.forced:
            return "\n".join([f"start: {calls}", *rules]) + "\n"
        # Text, and then perhaps a call. The token that begins a call is no text.
        return "\n".join(["start: TEXT call?", *rules, "TEXT: /(?s:.*)/"]) + "\n"

    def calls_or_answer(
        self, choice: ToolChoice, tools: Sequence[ToolSpec], wanted: AnswerFormat
    ) -> str:
        """The grammar of an answer that either calls tools or is JSON, and nothing besides.

        :raises UnsupportedError: as `answer` and `calls`.
        """
        json_answer = self._json(wanted)
        calls, rules = self._calls(choice, tools, wanted.param)
        return "\n".join([f"start: {calls} | answer", *rules, f"answer: {json_answer}"]) + "\n"

    def _json(self, wanted: AnswerFormat) -> str:
        probe = self._renderer.encode('{"a": 1}')
        if self._renderer.parse(probe, [], None).content != '{"a": 1}':
            raise UnsupportedError(
                f"{wanted.param} is not supported with this model: its answers begin with reasoning",
                param=wanted.param,
            )
        schema = json.loads(wanted.schema) if wanted.schema else _OBJECT
        return f"%json {_with_spaces(schema)}"

    def _calls(
        self, choice: ToolChoice, tools: Sequence[ToolSpec], param: str
    ) -> tuple[str, list[str]]:
        """What is written to call them, and the rules that this stands on.

        :param param: of the request, which makes it necessary.
        """
        form = self._call_format()
        if form is None:
            raise UnsupportedError(
                f"{param} is not supported with this model and tools: how it writes calls is not known here",
                param=param,
            )
        named = [tool for tool in tools if choice.name in ("", tool["function"]["name"])]
        if not named:
            raise UnsupportedError(
                f"{choice.param}: there is no tool {choice.name[:80]!r}", param=choice.param
            )
        rules = [
            f"call: {self._terminals(form.begin)} ({' | '.join(f'body{i}' for i in range(len(named)))}) "
        ]
        rules[0] += self._terminals(form.end)
        rules += [f"body{i}: %json {_body(tool, form)}" for i, tool in enumerate(named)]
        more = "" if choice.single or choice.name else f" ({self._terminals(form.between)} call)*"
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
        found = [(one.name, _object(one.arguments)) for one in parsed.calls]
        # Text that is a token of its own cannot come by other tokens.
        begins = len(self._renderer.encode(form.begin.strip())) == 1
        return begins and not parsed.malformed and found == [("probe", {"a": 1})] * 2

    def _terminals(self, text: str) -> str:
        """A text as terminals: markers that are tokens by their ids, everything else literally."""
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
    # References are to the root of the schema they stand in.
    for key in ("$defs", "definitions"):
        if key in arguments:
            schema[key] = arguments[key]
    return _with_spaces(schema)


def _with_spaces(schema: dict[str, Any]) -> str:
    """A schema as JSON text, with as much white space between values as anybody needs.

    A model that may write any amount of it goes on for ever, sooner or later.
    """
    return json.dumps({**schema, "x-guidance": {"whitespace_pattern": _WHITE_SPACE}})


def _object(arguments: Any) -> Any:
    return json.loads(arguments) if isinstance(arguments, str) else arguments
