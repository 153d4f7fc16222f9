"""OpenAI's responses."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ajet_core.errors import AjetError
from ajet_core.server.dialects.dialect import Asked, Dialect, event
from ajet_core.server.dialects.events import Choice, Delta, Event, Grown, Started
from ajet_core.server.dialects.exchange import Exchange, Session
from ajet_core.server.dialects.json_text import object_text
from ajet_core.server.dialects.openai_errors import openai_error
from ajet_core.server.dialects.responses_items import ID_PREFIX
from ajet_core.server.dialects.responses_request import ResponsesBody, read_responses_request
from ajet_core.server.dialects.token_spans import Spans


class ResponsesDialect(Dialect):
    """``POST /v1/responses``."""

    summary = "OpenAI responses"

    def read(self, body: bytes, session: Session) -> AskedResponse:
        """Understand a body, and the conversation that it goes on from."""
        return AskedResponse(*read_responses_request(body, session))

    def error(self, error: AjetError) -> dict[str, Any]:
        """OpenAI's error object."""
        return openai_error(error)

    def error_event(self, error: AjetError, position: int) -> bytes:
        """The SDK hands it on, as it does those of OpenAI."""
        told = {"code": error.type, "message": error.message, "param": error.param}
        return event(object_text({"type": "error", "sequence_number": position, **told}), "error")


@dataclass(frozen=True, slots=True)
class AskedResponse(Asked):
    """A request for a response.

    :param body: what of it the response repeats.
    """

    body: ResponsesBody

    def whole(self, exchange: Exchange, choices: Sequence[Choice]) -> bytes:
        """A ``response``."""
        (choice,) = choices
        spans = Spans(choice.generation, exchange.request.tools)
        items = _items(exchange, choice, spans)
        return object_text(self._complete(exchange, choice, items, spans))

    async def stream(
        self, exchange: Exchange, events: AsyncIterator[Event]
    ) -> AsyncGenerator[bytes, None]:
        """From ``response.created`` to ``response.completed``."""
        items = _Stream(exchange)
        async for happened in events:
            match happened:
                case Started(_, generation):
                    items.spans = spans = Spans(generation, exchange.request.tools)
                    begun = self._response(exchange, "in_progress", [])
                    yield items.event("response.created", response=begun)
                    yield items.event("response.in_progress", response=begun)
                case Grown(_, delta):
                    for line in items.grown(delta):
                        yield line
                case Choice(_, _, answer, reason, rest):
                    for line in items.grown(rest):
                        yield line
                    if not (answer.content or answer.tool_calls):
                        for line in items.text():
                            yield line
                    for line in items.closed(_status(reason)):
                        yield line
                    response = self._complete(exchange, happened, items.done, spans)
                    yield items.event(f"response.{response['status']}", response=response)

    def _complete(
        self, exchange: Exchange, choice: Choice, items: list[dict[str, Any]], spans: Spans
    ) -> dict[str, Any]:
        response = self._response(exchange, _status(choice.finish_reason), items)
        if choice.finish_reason == "length":
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        reasoned = spans.reasoning() if choice.answer.reasoning else 0
        prompt, sampled = len(exchange.prompt.ids), len(choice.generation.sampled_ids)
        response["usage"] = {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": sampled,
            "output_tokens_details": {"reasoning_tokens": reasoned},
            "total_tokens": prompt + sampled,
        }
        return response

    def _response(
        self, exchange: Exchange, status: str, items: list[dict[str, Any]]
    ) -> dict[str, Any]:
        body, request = self.body, self.request
        return {
            "id": exchange.completion_id,
            "object": "response",
            "created_at": int(exchange.created_at),
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": exchange.model_name,
            "output": items,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": None, "summary": None},
            "store": body.store is not False,
            "temperature": request.temperature,
            "text": {"format": {"type": "text"}, **_given(body.text)},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_logprobs": request.top_logprobs,
            "top_p": request.top_p,
            "truncation": body.truncation or "disabled",
            "usage": None,
        }


@dataclass(slots=True)
class _Stream:
    """The items of a stream, of which one is open at a time.

    :ivar done: items that are complete.
    """

    exchange: Exchange
    spans: Spans | None = None
    done: list[dict[str, Any]] = field(default_factory=list)
    _kind: str = ""
    _text: str = ""
    _said: str = ""
    _logprobs: list[dict[str, Any]] = field(default_factory=list)
    _item: dict[str, Any] = field(default_factory=dict)
    _number: int = 0

    def event(self, name: str, /, **content: Any) -> bytes:
        """The next event."""
        number, self._number = self._number, self._number + 1
        return event(object_text({"type": name, "sequence_number": number, **content}), name)

    def grown(self, delta: Delta) -> Iterator[bytes]:
        """The events of a delta."""
        if delta.reasoning:
            if self._kind != "reasoning":
                yield from self._open("reasoning", _reasoning(self.exchange, "", "in_progress"))
                yield self._part("response.content_part.added")
            self._text += delta.reasoning
            yield self._inside("response.reasoning_text.delta", delta=delta.reasoning)
        if delta.content:
            yield from self.text()
            self._text += delta.content
            logprobs = self._more_logprobs(delta.content)
            yield self._inside("response.output_text.delta", delta=delta.content, logprobs=logprobs)
        for call in delta.calls:
            if call.id is not None:
                item = _call(self.exchange, call.index, call.id, call.name or "", "", "in_progress")
                yield from self._open("function_call", item)
            self._text += call.arguments
            if call.arguments:
                yield self._of_item("response.function_call_arguments.delta", delta=call.arguments)

    def text(self) -> Iterator[bytes]:
        """Be in a message."""
        if self._kind != "message":
            item = _message(self.exchange, "", "in_progress", [])
            if any(one["type"] == "message" for one in self.done):
                # What was said after a call.
                item["id"] += f"-{len(self.done)}"
            yield from self._open("message", item)
            yield self._part("response.content_part.added")

    def closed(self, status: str = "completed") -> Iterator[bytes]:
        """The end of the item that is open."""
        text, kind = self._text, self._kind
        match kind:
            case "reasoning":
                self._item["content"][0]["text"] = text
                yield self._inside("response.reasoning_text.done", text=text)
                yield self._part("response.content_part.done")
            case "message":
                listed = self._logprobs
                self._item["content"][0] |= {"text": text, "logprobs": listed}
                yield self._inside("response.output_text.done", text=text, logprobs=listed)
                yield self._part("response.content_part.done")
            case "function_call":
                self._item["arguments"] = text
                name = self._item["name"]
                yield self._of_item(
                    "response.function_call_arguments.done", name=name, arguments=text
                )
            case _:
                return
        self._item["status"] = status
        self.done.append(self._item)
        yield self.event(
            "response.output_item.done", output_index=len(self.done) - 1, item=self._item
        )
        self._kind = ""

    def _open(self, kind: str, item: dict[str, Any]) -> Iterator[bytes]:
        yield from self.closed()
        self._kind, self._text, self._logprobs, self._item = kind, "", [], item
        # Without its parts, which are added by events of their own.
        bare = {**item, "content": []} if "content" in item else item
        yield self.event("response.output_item.added", output_index=len(self.done), item=bare)

    def _more_logprobs(self, text: str) -> list[dict[str, Any]]:
        self._said += text
        if self.spans is None or not self.exchange.request.logprobs:
            return []
        more = self.spans.more_text(self._said)
        self._logprobs += more
        return more

    def _of_item(self, name: str, /, **content: Any) -> bytes:
        return self.event(name, item_id=self._item["id"], output_index=len(self.done), **content)

    def _inside(self, name: str, /, **content: Any) -> bytes:
        return self._of_item(name, content_index=0, **content)

    def _part(self, name: str) -> bytes:
        return self._inside(name, part=self._item["content"][0])


def _items(exchange: Exchange, choice: Choice, spans: Spans) -> list[dict[str, Any]]:
    answer, status = choice.answer, _status(choice.finish_reason)
    items: list[dict[str, Any]] = []
    if answer.reasoning:
        items.append(_reasoning(exchange, answer.reasoning, "completed"))
    if answer.content or not answer.tool_calls:
        logprobs = spans.more_text(answer.content) if exchange.request.logprobs else []
        items.append(_message(exchange, answer.content, status, logprobs))
    items += [
        _call(exchange, i, call.id, call.name, call.arguments, status)
        for i, call in enumerate(answer.tool_calls)
    ]
    return items


def _reasoning(exchange: Exchange, text: str, status: str) -> dict[str, Any]:
    return {
        "id": f"rs_{_stem(exchange)}",
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}],
        "status": status,
    }


def _message(
    exchange: Exchange, text: str, status: str, logprobs: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "id": f"msg_{_stem(exchange)}",
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}],
    }


def _call(  # noqa: PLR0917 - the fields of a call
    exchange: Exchange, index: int, call_id: str, name: str, arguments: str, status: str
) -> dict[str, Any]:
    return {
        "id": f"fc_{_stem(exchange)}-{index}",
        "type": "function_call",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        "status": status,
    }


def _given(text: dict[str, Any] | None) -> dict[str, Any]:
    """The settings of the text that were set."""
    return {name: value for name, value in (text or {}).items() if value is not None}


def _stem(exchange: Exchange) -> str:
    return exchange.completion_id.removeprefix(ID_PREFIX)


def _status(finish_reason: str) -> str:
    return "incomplete" if finish_reason == "length" else "completed"
