"""The span of a model call."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from contextvars import Token
from types import TracebackType
from typing import Any, Self

from ajet_core.protocol import TRACE_HEADER, TraceParent
from ajet_core.timeline import Call, MessageText
from ajet_server.gateway.formats.generation import Generation
from ajet_server.gateway.formats.request import ModelRequest
from ajet_server.telemetry.spans import (
    CURRENT,
    SERVER,
    Attribute,
    SpanData,
    SpanMaker,
    SpanShape,
    error_kind,
    new_span_id,
)

PROVIDER = ("gen_ai.provider.name", "agentjet")
# A request may name a model of megabytes, and shapes are kept.
_LONGEST_NAME = 256
_TRACE_HEADER = TRACE_HEADER.encode()


class CallSpan:
    """A model call in progress; a context manager that ends with it.

    :param root: the root span of its episode's trace.
    :param headers: of the request, as ASGI has them.
    :param put: takes what makes the span when the call has ended, if its episode is sampled.
    :param clock: Unix time in nanoseconds.
    :param content: whether to export messages.
    :ivar calls: what was recorded of it.
    """

    # Of the class, so that a call sets only what it has.
    _first = 0
    _error = ""
    request: ModelRequest | None = None
    agent = model = ""
    _cached: int | None = None

    def __init__(  # noqa: PLR0917 - made for each call
        self,
        episode_id: str,
        root: TraceParent,
        headers: Iterable[tuple[bytes, bytes]],
        put: Callable[[SpanMaker], None],
        clock: Callable[[], int],
        content: bool,
    ) -> None:
        self._episode_id = episode_id
        self._root = root
        self._headers = headers
        self._put = put
        self._clock = clock
        self._content = content
        self.context = TraceParent(root.trace_id, new_span_id(), root.sampled)
        self.calls: list[Call] = []
        self._started = clock()

    def __enter__(self) -> Self:
        self._token: Token[TraceParent | None] = CURRENT.set(self.context)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is not None:
            self.failed(error)
        CURRENT.reset(self._token)
        if self.context.sampled:
            self._ended = self._clock()
            self._put(self._data)

    def failed(self, error: BaseException) -> None:
        """Note what ended the call, unless something did before."""
        self._error = self._error or error_kind(error)

    def answering(self) -> None:
        """Note that the first part of a streamed answer is there."""
        self._first = self._clock()

    def answered(self, generation: Generation) -> None:
        """Note how much of its prompt the engine had cached, for the first choice."""
        if self._cached is None:
            self._cached = generation.cached_tokens

    def _data(self) -> SpanData:
        """Return the finished span."""
        parent, links = self._above()
        names: tuple[str, ...] = _CONVERSATION
        values: list[Attribute] = [self._episode_id]
        request, calls = self.request, self.calls
        reasons: tuple[str, ...] = ()
        version: int | None = None
        if request is not None and request.seed is not None:
            names += ("gen_ai.request.seed",)
            values.append(request.seed)
        if calls:
            first = calls[0]
            tokens = sum([len(call.sampled_ids) for call in calls])
            reasons = tuple([call.finish_reason for call in calls])
            versions = calls[-1].policy_versions
            version = versions[-1] if versions else None
            names += _ANSWERED
            values += (first.call_id, first.prompt_length, tokens)
            values.append(first.created_at - self._started / 1e9)
            if self._content:
                names += _CONTENT
                values += _content(calls)
        if self._cached is not None:
            names += ("gen_ai.usage.cache_read.input_tokens",)
            values.append(self._cached)
        if self._first:
            names += ("gen_ai.response.time_to_first_chunk",)
            values.append((self._first - self._started) / 1e9)
        shape = _UNREAD
        if request is not None:
            shape = _shape(
                names,
                reasons,
                version,
                "chat" if request.prompt is None else "text_completion",
                request.model[:_LONGEST_NAME] or self.model,
                self.model,
                request.temperature,
                request.top_p,
                request.max_tokens,
                request.n,
                request.stream,
                self.agent,
            )
        return SpanData(
            shape,
            self.context,
            parent,
            self._started,
            self._ended,
            values,
            links,
            error=self._error,
        )

    def _above(self) -> tuple[bytes, tuple[TraceParent, ...]]:
        """Return the id of the parent, and the links."""
        root = self._root
        for name, value in self._headers:
            if name == _TRACE_HEADER:
                incoming = TraceParent.read(value.decode("latin-1"))
                if incoming is None:
                    break
                if incoming.trace_id == root.trace_id:
                    return incoming.span_id, ()
                return root.span_id, (incoming,)
        return root.span_id, ()


_CONVERSATION = ("gen_ai.conversation.id",)
_ANSWERED = (
    "gen_ai.response.id",
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.output_tokens",
    "ajet.seconds_to_engine",
)
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
