"""OpenAI chat completions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ajet_core.errors import AjetError
from ajet_server.gateway.formats.chat_json import (
    ChoiceWriter,
    choice_json,
    delta_json,
    rest_json,
    usage_json,
)
from ajet_server.gateway.formats.chat_request import read_chat_request
from ajet_server.gateway.formats.dialect import COMMENT, Asked, Dialect, StreamWriter, event
from ajet_server.gateway.formats.events import Choice, Event, Grown, Started
from ajet_server.gateway.formats.exchange import Exchange, Session
from ajet_server.gateway.formats.generation import Generation
from ajet_server.gateway.formats.json_text import list_text, object_text
from ajet_server.gateway.formats.openai_errors import openai_error

_DONE = event(b"[DONE]")


class ChatDialect(Dialect):
    """``POST /v1/chat/completions``."""

    summary = "OpenAI chat completions"

    def read(self, body: bytes, session: Session) -> AskedChat:
        """Understand a body; messages of the request before need not be understood again."""
        return AskedChat(read_chat_request(body, session.index.latest_messages))

    def error(self, error: AjetError) -> dict[str, Any]:
        """OpenAI's error object."""
        return openai_error(error)

    def error_event(self, error: AjetError, position: int) -> bytes:  # noqa: ARG002
        """The SDKs raise on an error object in the stream."""
        return event(object_text(openai_error(error)))


@dataclass(frozen=True, slots=True)
class AskedChat(Asked):
    """A chat request."""

    def whole(self, exchange: Exchange, choices: Sequence[Choice]) -> bytes:
        """A ``chat.completion``."""
        request = exchange.request
        completion: dict[str, Any] = {
            "id": exchange.completion_id,
            "object": "chat.completion",
            "created": int(exchange.created_at),
            "model": exchange.model_name,
            "usage": usage_json(exchange, [choice.generation for choice in choices]),
        }
        if request.return_token_ids:
            completion["prompt_token_ids"] = exchange.prompt.ids
        return object_text(
            completion, choices=list_text([choice_json(request, choice) for choice in choices])
        )

    def writer(self, exchange: Exchange) -> ChatWriter:
        """``chat.completion.chunk`` after chunk."""
        return ChatWriter(exchange)


@dataclass(slots=True)
class ChatWriter(StreamWriter):
    """Writes the chunks of one answer."""

    exchange: Exchange
    _generations: list[Generation] = field(default_factory=list)
    _writers: dict[int, ChoiceWriter] = field(default_factory=dict)
    _complete: set[int] = field(default_factory=set)

    def write(self, happened: Event) -> Iterator[bytes]:
        """The chunks of a choice."""
        request = self.exchange.request
        writer = self._writers.get(happened.choice)
        match happened:
            case Started(choice, generation):
                self._generations.append(generation)
                writer = self._writers[choice] = ChoiceWriter(request, choice, generation)
                prompt = (
                    {"prompt_token_ids": self.exchange.prompt.ids}
                    if request.return_token_ids
                    else {}
                )
                yield self._chunk(writer.choice({"role": "assistant"}), **prompt)
            case Grown(_, delta):
                assert writer is not None, "a choice starts before it grows"
                if delta.calls:
                    for part in rest_json(delta, empty=False):
                        yield self._chunk(writer.choice(part))
                elif delta or writer.has_tokens:
                    yield self._chunk(writer.choice(delta_json(delta)))
            case Choice(choice, _, answer, reason, rest):
                assert writer is not None, "a choice starts before it ends"
                for part in rest_json(rest, empty=not (answer.content or answer.tool_calls)):
                    yield self._chunk(writer.choice(part))
                yield self._chunk(writer.choice({}, reason))
                self._complete.add(choice)

    def heartbeat(self) -> Iterator[bytes]:
        """A chunk whose delta is empty: unlike a comment, programs see it, and go on waiting."""
        index = next(i for i in itertools.count() if i not in self._complete)
        if index < self.exchange.request.n:
            choice = {"index": index, "delta": {}, "logprobs": None, "finish_reason": None}
            yield self._chunk(object_text(choice))
        else:
            yield COMMENT

    def end(self) -> Iterator[bytes]:
        """The tokens used, if they are wanted, and the mark of the end."""
        if self.exchange.request.include_usage:
            yield self._chunk(usage=usage_json(self.exchange, self._generations))
        yield _DONE

    def _chunk(self, *choices: bytes, **more: Any) -> bytes:
        exchange = self.exchange
        chunk: dict[str, Any] = {
            "id": exchange.completion_id,
            "object": "chat.completion.chunk",
            "created": int(exchange.created_at),
            "model": exchange.model_name,
        }
        if exchange.request.include_usage:
            chunk["usage"] = None
        return event(object_text({**chunk, **more}, choices=list_text(choices)))
