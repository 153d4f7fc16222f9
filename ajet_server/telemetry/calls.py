"""The span of a model call: what the event loop notes, and what becomes of it."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from contextvars import Token
from types import TracebackType
from typing import Any, Self

from ajet_core.protocol import TraceParent
from ajet_core.timeline import Call, MessageText
from ajet_server.gateway.formats.request import ModelRequest
from ajet_server.telemetry.spans import CURRENT, SERVER, Attribute, Attributes, SpanData, error_kind

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

    __slots__ = (
        "_clock",
        "_content",
        "_ended",
        "_error",
        "_finish",
        "_first",
        "_link",
        "_parent",
        "_started",
        "_token",
        "agent",
        "calls",
        "context",
        "episode_id",
        "model",
        "request",
    )

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
        self._first = self._ended = 0
        self._error = ""
        self.request: ModelRequest | None = None
        self.agent = self.model = ""
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

    def data(self) -> SpanData:
        """Return the finished span."""
        request, calls = self.request, self.calls
        name, fixed = "chat", _UNREAD
        more: list[tuple[str, Attribute]] = [("gen_ai.conversation.id", self.episode_id)]
        if request is not None:
            versions = calls[-1].policy_versions if calls else None
            name, fixed = _shared(
                "chat" if request.prompt is None else "text_completion",
                request.model or self.model,
                self.model,
                request.temperature,
                request.top_p,
                request.max_tokens,
                request.n,
                request.stream,
                self.agent,
                tuple([call.finish_reason for call in calls]),
                versions[-1] if versions else None,
            )
            if request.seed is not None:
                more.append(("gen_ai.request.seed", request.seed))
        if calls:
            first = calls[0]
            output = sum([len(call.sampled_ids) for call in calls])
            more += (
                ("gen_ai.response.id", first.call_id),
                ("gen_ai.usage.input_tokens", first.prompt_length),
                ("gen_ai.usage.output_tokens", output),
            )
            if self._content:
                more += _content(calls)
        if self._first:
            elapsed = (self._first - self._started) / 1e9
            more.append(("gen_ai.response.time_to_first_chunk", elapsed))
        return SpanData(
            name,
            SERVER,
            self.context,
            self._parent,
            self._started,
            self._ended,
            fixed,
            tuple(more),
            () if self._link is None else (self._link,),
            error=self._error,
        )


_UNREAD: Attributes = (("gen_ai.operation.name", "chat"), PROVIDER)


@functools.lru_cache(maxsize=256)
def _shared(  # noqa: PLR0917 - a cache compares positional arguments faster
    operation: str,
    asked: str,
    model: str,
    temperature: float,
    top_p: float,
    max_tokens: int | None,
    count: int,
    stream: bool,
    agent: str,
    reasons: tuple[str, ...],
    version: int | None,
) -> tuple[str, Attributes]:
    """Return the name and the attributes that the spans of many calls share."""
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
    return f"{operation} {asked}", tuple(fixed)


def _content(calls: list[Call]) -> Iterable[tuple[str, Attribute]]:
    """Yield the messages of calls with the same prompt, as JSON of the GenAI conventions."""
    messages = [_message(placed.text) for placed in calls[0].conversation()]
    yield "gen_ai.input.messages", json.dumps(messages, ensure_ascii=False)
    answers = [
        {**_message(call.answer), "finish_reason": call.finish_reason}
        for call in calls
        if call.answer is not None
    ]
    yield "gen_ai.output.messages", json.dumps(answers, ensure_ascii=False)


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
