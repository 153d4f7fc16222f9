"""Anthropic's messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ajet_core.errors import AjetError, ContextLengthError
from ajet_server.gateway.formats.answer import Answer
from ajet_server.gateway.formats.anthropic_request import read_messages_request
from ajet_server.gateway.formats.dialect import Asked, Dialect, StreamWriter, event
from ajet_server.gateway.formats.events import CallDelta, Choice, Delta, Event, Grown, Started
from ajet_server.gateway.formats.exchange import Exchange, Session
from ajet_server.gateway.formats.json_text import object_text
from ajet_server.gateway.formats.request import ModelRequest

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class AnthropicDialect(Dialect):
    """``POST /v1/messages``."""

    summary = "Anthropic messages"
    heartbeat = event(b'{"type":"ping"}', "ping")

    def read(self, body: bytes, session: Session) -> AskedMessages:  # noqa: ARG002
        """Understand a body."""
        return AskedMessages(read_messages_request(body))

    def read_to_count(self, body: bytes) -> ModelRequest:
        """Understand a body whose tokens are to be counted."""
        return read_messages_request(body)

    def error(self, error: AjetError) -> dict[str, Any]:
        """Anthropic's error object."""
        kind = _KINDS.get(error.status)
        if kind is None:
            kind = "invalid_request_error" if error.status < 500 else "api_error"
        return {"type": "error", "error": {"type": kind, "message": _message_of(error)}}

    def error_event(self, error: AjetError, position: int) -> bytes:  # noqa: ARG002
        """The SDK raises on it."""
        return event(object_text(self.error(error)), "error")


@dataclass(frozen=True, slots=True)
class AskedMessages(Asked):
    """A request for a message."""

    def whole(self, exchange: Exchange, choices: Sequence[Choice]) -> bytes:
        """A ``message``."""
        (choice,) = choices
        message = _message(exchange, _blocks(choice.answer)) | _end(choice)
        message["usage"] = _usage(exchange, len(choice.generation.sampled_ids))
        return object_text(message)

    def writer(self, exchange: Exchange) -> MessageWriter:
        """From ``message_start`` to ``message_stop``."""
        return MessageWriter(exchange)


@dataclass(slots=True)
class _Blocks:
    """The content blocks of a stream, of which one is open at a time."""

    _index: int = -1
    _kind: str = ""
    _open: bool = field(default=False)

    def grown(self, delta: Delta) -> Iterator[bytes]:
        """The events of a delta."""
        if delta.reasoning:
            yield from self._in("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            yield self._more({"type": "thinking_delta", "thinking": delta.reasoning})
        if delta.content:
            yield from self.text()
            yield self._more({"type": "text_delta", "text": delta.content})
        for call in delta.calls:
            yield from self._called(call)

    def text(self) -> Iterator[bytes]:
        """Be in a block of text."""
        return self._in("text", {"type": "text", "text": ""})

    def closed(self) -> Iterator[bytes]:
        """The end of the block that is open."""
        if self._open:
            if self._kind == "thinking":
                yield self._more({"type": "signature_delta", "signature": ""})
            yield _sse("content_block_stop", index=self._index)
        self._open = False

    def _called(self, call: CallDelta) -> Iterator[bytes]:
        if call.id is not None:
            block: dict[str, Any] = {
                "type": "tool_use",
                "id": call.id,
                "name": call.name,
                "input": {},
            }
            yield from self._in(f"tool_use {call.index}", block)
        if call.arguments:
            yield self._more({"type": "input_json_delta", "partial_json": call.arguments})

    def _in(self, kind: str, block: dict[str, Any]) -> Iterator[bytes]:
        if self._open and self._kind == kind:
            return
        yield from self.closed()
        self._index += 1
        self._kind, self._open = kind, True
        yield _sse("content_block_start", index=self._index, content_block=block)

    def _more(self, delta: dict[str, Any]) -> bytes:
        return _sse("content_block_delta", index=self._index, delta=delta)


@dataclass(slots=True)
class MessageWriter(StreamWriter):
    """Writes the events of a message."""

    exchange: Exchange
    _blocks: _Blocks = field(default_factory=_Blocks)

    def write(self, happened: Event) -> Iterator[bytes]:
        """The events of the message's blocks, and of its beginning and end."""
        exchange, blocks = self.exchange, self._blocks
        match happened:
            case Started():
                message = _message(exchange, []) | {"usage": _usage(exchange, 1)}
                message |= {"stop_reason": None, "stop_sequence": None}
                yield _sse("message_start", message=message)
            case Grown(_, delta):
                yield from blocks.grown(delta)
            case Choice(_, generation, answer, _, rest):
                yield from blocks.grown(rest)
                if not (answer.content or answer.tool_calls):
                    yield from blocks.text()
                yield from blocks.closed()
                usage = {"output_tokens": len(generation.sampled_ids)}
                yield _sse("message_delta", delta=_end(happened), usage=usage)
                yield _sse("message_stop")

    def heartbeat(self) -> Iterator[bytes]:
        """An event ``ping``."""
        yield AnthropicDialect.heartbeat


def _message_of(error: AjetError) -> str:
    """The error's message; of a prompt that is too long in Anthropic's words, which programs look for to compact."""
    if not isinstance(error, ContextLengthError) or error.prompt_tokens is None:
        return error.message
    # An answer needs one token at least.
    most = (error.max_context or 0) - 1
    return f"prompt is too long: {error.prompt_tokens} tokens > {most} maximum"


def _sse(name: str, **content: Any) -> bytes:
    return event(object_text({"type": name, **content}), name)


def _message(exchange: Exchange, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": exchange.completion_id,
        "type": "message",
        "role": "assistant",
        "model": exchange.model_name,
        "content": content,
    }


def _blocks(answer: Answer) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if answer.reasoning:
        blocks.append({"type": "thinking", "thinking": answer.reasoning, "signature": ""})
    if answer.content or not answer.tool_calls:
        blocks.append({"type": "text", "text": answer.content})
    blocks += [
        {"type": "tool_use", "id": c.id, "name": c.name, "input": json.loads(c.arguments)}
        for c in answer.tool_calls
    ]
    return blocks


def _end(choice: Choice) -> dict[str, Any]:
    stopped = choice.generation.stopped_by
    reason = "stop_sequence" if stopped else _REASONS[choice.finish_reason]
    return {"stop_reason": reason, "stop_sequence": stopped}


def _usage(exchange: Exchange, sampled: int) -> dict[str, int]:
    return {
        "input_tokens": len(exchange.prompt.ids),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": sampled,
    }
