"""The span of a model call: what the event loop notes, and what becomes of it."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterable
from contextvars import Token
from types import TracebackType
from typing import Any, Self

from ajet_core.protocol import TraceParent
from ajet_core.timeline import Call, MessageText
from ajet_server.gateway.formats.request import ModelRequest
from ajet_server.telemetry.spans import (
    CURRENT,
    SERVER,
    SPAN_BYTES,
    Attribute,
    SpanData,
    SpanMaker,
    SpanShape,
    error_kind,
)

PROVIDER = ("gen_ai.provider.name", "agentjet")


class CallSpan:
    """A model call in progress; a context manager that ends with it.

    :param parent: [8] id of the span above it.
    :param link: the caller's span, if that is in another trace.
    :param finish: takes it when the call has ended.
    :param clock: Unix time in nanoseconds.
    :param content: whether to export messages.
    :ivar calls: what was recorded of it.
    """

    # Of the class, so that a call sets only what it has.
    _first = 0
    _error = ""
    request: ModelRequest | None = None
    agent = model = ""

    def __init__(  # noqa: PLR0917 - made for each call
        self,
        episode_id: str,
        context: TraceParent,
        parent: bytes,
        link: TraceParent | None,
        finish: Callable[[CallSpan], None],
        clock: Callable[[], int],
        content: bool,
    ) -> None:
        self.episode_id = episode_id
        self.context = context
        self._parent = parent
        self._link = link
        self._finish = finish
        self._clock = clock
        self._content = content
        self._started = clock()
        self.calls: list[Call] = []

    def __enter__(self) -> Self:
        self._token: Token[TraceParent | None] = CURRENT.set(self.context)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is not None:
            self.failed(error)
        CURRENT.reset(self._token)
        self._ended = self._clock()
        self._finish(self)

    def failed(self, error: BaseException) -> None:
        """Note what ended the call, unless something did before."""
        self._error = self._error or error_kind(error)

    def answering(self) -> None:
        """Note that the first part of a streamed answer is there."""
        self._first = self._clock()

    def note(self) -> tuple[SpanMaker, int]:
        """Return what makes the finished span, and how many bytes that keeps, about.

        It keeps what is exported, and not the request and its calls, which take more memory.
        """
        request, calls = self.request, self.calls
        content: tuple[str, ...] = ()
        size = SPAN_BYTES
        if request is None:
            asked = None
        else:
            asked = (
                "chat" if request.prompt is None else "text_completion",
                request.model or self.model,
                self.model,
                request.temperature,
                request.top_p,
                request.max_tokens,
                request.n,
                request.stream,
                self.agent,
            )
            size += len(asked[1])
        if not calls:
            answer = None
        else:
            first = calls[0]
            tokens = len(first.sampled_ids)
            reasons: tuple[str, ...] = (first.finish_reason,)
            if len(calls) > 1:
                tokens = sum([len(call.sampled_ids) for call in calls])
                reasons = tuple([call.finish_reason for call in calls])
            versions = calls[-1].policy_versions
            version = versions[-1] if versions else None
            answer = (reasons, version, first.call_id, first.prompt_length, tokens)
            if self._content:
                content = tuple(_content(calls))
                size += sum(map(sys.getsizeof, content))
        make = functools.partial(
            _call_span,
            self.context,
            self._parent,
            self._link,
            self.episode_id,
            asked,
            None if request is None else request.seed,
            answer,
            content,
            self._started,
            self._first,
            self._ended,
            self._error,
        )
        return make, size


_Asked = tuple[str, str, str, float, float, int | None, int, bool, str]
_Answer = tuple[tuple[str, ...], int | None, str, int, int]


def _call_span(  # noqa: PLR0917 - what was noted of a call
    context: TraceParent,
    parent: bytes,
    link: TraceParent | None,
    episode_id: str,
    asked: _Asked | None,
    seed: int | None,
    answer: _Answer | None,
    content: tuple[str, ...],
    started: int,
    first: int,
    ended: int,
    error: str,
) -> SpanData:
    names: tuple[str, ...] = _CONVERSATION
    values: list[Attribute] = [episode_id]
    reasons: tuple[str, ...] = ()
    version: int | None = None
    if seed is not None:
        names += ("gen_ai.request.seed",)
        values.append(seed)
    if answer is not None:
        reasons, version, call_id, prompt_tokens, tokens = answer
        names += _ANSWERED
        values += (call_id, prompt_tokens, tokens)
    if content:
        names += _CONTENT
        values += content
    if first:
        names += ("gen_ai.response.time_to_first_chunk",)
        values.append((first - started) / 1e9)
    shape = _UNREAD if asked is None else _shape(names, reasons, version, *asked)
    links = () if link is None else (link,)
    return SpanData(shape, context, parent, started, ended, values, links, error=error)


_CONVERSATION = ("gen_ai.conversation.id",)
_ANSWERED = ("gen_ai.response.id", "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")
_CONTENT = ("gen_ai.input.messages", "gen_ai.output.messages")
_UNREAD = SpanShape("chat", SERVER, (("gen_ai.operation.name", "chat"), PROVIDER), _CONVERSATION)


@functools.lru_cache(maxsize=256)
def _shape(  # noqa: PLR0917 - a cache compares positional arguments faster
    names: tuple[str, ...],
    reasons: tuple[str, ...],
    version: int | None,
    operation: str,
    asked: str,
    model: str,
    temperature: float,
    top_p: float,
    max_tokens: int | None,
    count: int,
    stream: bool,
    agent: str,
) -> SpanShape:
    """Return the shape that the spans of many calls share."""
    fixed: list[tuple[str, Attribute]] = [
        ("gen_ai.operation.name", operation),
        PROVIDER,
        ("gen_ai.request.model", asked),
        ("gen_ai.response.model", model),
        ("gen_ai.request.temperature", float(temperature)),
        ("gen_ai.request.top_p", float(top_p)),
    ]
    if max_tokens is not None:
        fixed.append(("gen_ai.request.max_tokens", max_tokens))
    if count != 1:
        fixed.append(("gen_ai.request.choice.count", count))
    if stream:
        fixed.append(("gen_ai.request.stream", stream))
    if agent:
        fixed.append(("gen_ai.agent.name", agent))
    if reasons:
        fixed.append(("gen_ai.response.finish_reasons", reasons))
    if version is not None:
        fixed.append(("ajet.policy_version", version))
    return SpanShape(f"{operation} {asked}", SERVER, tuple(fixed), names)


def _content(calls: list[Call]) -> Iterable[str]:
    """Yield the messages of calls with the same prompt, as JSON of the GenAI conventions."""
    messages = [_message(placed.text) for placed in calls[0].conversation()]
    yield json.dumps(messages, ensure_ascii=False)
    answers = [
        {**_message(call.answer), "finish_reason": call.finish_reason}
        for call in calls
        if call.answer is not None
    ]
    yield json.dumps(answers, ensure_ascii=False)


def _message(text: MessageText) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    if text.reasoning:
        parts.append({"type": "reasoning", "content": text.reasoning})
    if text.role == "tool":
        answer = {"type": "tool_call_response", "id": text.tool_call_id, "response": text.content}
        parts.append(answer)
    elif text.content:
        parts.append({"type": "text", "content": text.content})
    for call in json.loads(text.tool_calls) if text.tool_calls else ():
        function = call.get("function", call)
        part = {"name": function.get("name", ""), "arguments": function.get("arguments")}
        parts.append({"type": "tool_call", "id": call.get("id"), **part})
    return {"role": text.role, "parts": parts}
