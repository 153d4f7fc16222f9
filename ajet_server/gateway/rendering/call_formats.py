"""Find the parser for tool calls of a model that has only a chat template."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ajet_core.timeline.radix import common_prefix
from ajet_server.gateway.rendering.auto import family_names
from ajet_server.gateway.rendering.messages import (
    ChatMessage,
    ToolCall,
    ToolSpec,
    renderer_messages,
)
from ajet_server.gateway.rendering.parsing import AnswerParser
from ajet_server.gateway.rendering.tokenizer import GatewayTokenizer

# The library's parsers for its renderer of Jinja templates, and the family whose format each reads.
_LIBRARY_PARSERS = {
    "qwen3": "qwen3",
    "qwen3.5": "qwen3.5",
    "glm": "glm-4.5",
    "deepseek-v3": "deepseek-v3",
}
_QUESTION = ChatMessage("user", "Where is the goal?")
_SAID = "I see a wall."
_NAME = "look_around"
_ARGUMENTS: tuple[dict[str, Any], ...] = (
    {"text": "Go up, then left."},
    {"items": [1, {"a": None, "b": [True]}], "number": 2.5, "text": 'two\nlines, "quoted"'},
)
_TOOLS: tuple[ToolSpec, ...] = (
    {
        "type": "function",
        "function": {
            "name": _NAME,
            "description": "Looks around.",
            "parameters": {
                "type": "object",
                "properties": {
                    "text": {"type": "string"},
                    "items": {"type": "array"},
                    "number": {"type": "number"},
                },
            },
        },
    },
)


@dataclass(frozen=True, slots=True)
class CallFormat:
    """A parser that reads a model's tool calls.

    :param family: family whose format it is.
    :param streams_as: name of the renderer whose streaming rules apply; see `StablePrefix.of`.
    """

    family: str
    parser: AnswerParser
    streams_as: str


def call_format(
    renderer: Any, tokenizer: GatewayTokenizer, stop_token_ids: Sequence[int]
) -> CallFormat | None:
    """Return the first known parser that recovers the calls that a chat template writes.

    The template writes a call with a string, one with nested arguments, two calls at once, and a
    call after text. The parser has to read all of them, except those that the template refuses,
    such as several calls in Llama 3.

    :param renderer: the library's renderer of the template.
    :return: None if there is no such parser, or if the template does not write calls.
    """
    stops = frozenset(stop_token_ids)
    probes = list(_probes(renderer, tokenizer, stops))
    if not probes:
        return None
    candidates = _candidates(tokenizer, stop_token_ids)
    return next(
        (
            candidate
            for candidate in candidates
            if all(p.is_read_by(candidate.parser) for p in probes)
        ),
        None,
    )


@dataclass(frozen=True, slots=True)
class _Probe:
    """An answer with calls, as the template writes it.

    :param prompt: tokens before the answer.
    :param answer: tokens of the answer.
    :param arguments: arguments of each call.
    :param said: text before the calls, "" if the template writes none there.
    """

    prompt: list[int]
    answer: list[int]
    arguments: tuple[dict[str, Any], ...]
    said: str

    def is_read_by(self, parser: AnswerParser) -> bool:
        """Whether the parser returns exactly the calls and the text."""
        parsed = parser.parse(self.answer, self.prompt, _TOOLS)
        calls = [(call.name, _object(call.arguments)) for call in parsed.calls]
        wanted = [(_NAME, arguments) for arguments in self.arguments]
        return calls == wanted and parsed.content == self.said and not parsed.malformed


def _probes(renderer: Any, tokenizer: GatewayTokenizer, stops: frozenset[int]) -> Iterator[_Probe]:
    """Yield the template's rendering of some answers; nothing if it writes no calls."""
    first, nested = _ARGUMENTS
    for said, calls in (("", (first,)), ("", (nested,)), ("", _ARGUMENTS), (_SAID, (first,))):
        answer = ChatMessage(
            "assistant",
            said,
            tuple(
                # The templates of Mistral require ids of nine letters and digits.
                ToolCall(f"call0000{i}", _NAME, json.dumps(arguments))
                for i, arguments in enumerate(calls)
            ),
        )
        asked, written = _by_template(renderer, (), asking=True), _by_template(renderer, (answer,))
        if asked is None or written is None:
            continue
        begun = common_prefix(asked, written, 0)
        end = next((i for i in range(begun, len(written)) if written[i] in stops), len(written))
        text = tokenizer.decode(written[begun:end], skip_special_tokens=False)
        if _NAME not in text:
            return
        before = text.partition(_NAME)[0]
        shown = said if said and said in before else ""
        yield _Probe(written[:begun], written[begun:end], calls, shown)


def _candidates(tokenizer: GatewayTokenizer, stop_token_ids: Sequence[int]) -> Iterator[CallFormat]:
    from renderers import create_renderer
    from renderers.configs import DefaultRendererConfig

    for name, family in _LIBRARY_PARSERS.items():
        reader = create_renderer(tokenizer, DefaultRendererConfig(tool_parser=name))
        parser = AnswerParser(family, reader, tokenizer, stop_token_ids)
        yield CallFormat(family, parser, "default")
    for family in family_names():
        if family == "gpt-oss":
            # Its renderer downloads its vocabulary.
            continue
        if (reader := _typed(tokenizer, family)) is not None:
            parser = AnswerParser(family, reader, tokenizer, stop_token_ids)
            yield CallFormat(family, parser, family)


def _typed(tokenizer: GatewayTokenizer, family: str) -> Any:
    """Return a family's renderer, for its parser; None if the vocabulary lacks its tokens."""
    from renderers import create_renderer
    from renderers.configs import config_from_name

    try:
        return create_renderer(tokenizer, config_from_name(family))
    except Exception:  # noqa: BLE001 - the library refuses tokenizers in many ways
        return None


def _by_template(
    renderer: Any, answers: Sequence[ChatMessage], *, asking: bool = False
) -> list[int] | None:
    """Return the tokens of the question and `answers`, None if the template refuses them."""
    messages = renderer_messages([_QUESTION, *answers])
    try:
        ids: list[int] = renderer.render_ids(
            messages, tools=list(_TOOLS), add_generation_prompt=asking
        )
    except Exception:  # noqa: BLE001 - a template may refuse a conversation by any exception
        return None
    return ids


def _object(arguments: Any) -> Any:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return None
