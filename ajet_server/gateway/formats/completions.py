"""OpenAI's text completions: a prompt is continued as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ajet_core.errors import AjetError
from ajet_server.gateway.formats.chat_json import usage_json
from ajet_server.gateway.formats.completions_request import (
    CompletionsBody,
    read_completions_request,
)
from ajet_server.gateway.formats.dialect import COMMENT, Asked, Dialect, StreamWriter, event
from ajet_server.gateway.formats.events import Choice, Event, Grown, Started
from ajet_server.gateway.formats.exchange import Exchange, Session
from ajet_server.gateway.formats.generation import Generation
from ajet_server.gateway.formats.json_text import list_text, object_text
from ajet_server.gateway.formats.openai_errors import openai_error


class CompletionsDialect(Dialect):
    """``POST /v1/completions``."""

    summary = "OpenAI text completions"

    def read(self, body: bytes, session: Session) -> AskedText:  # noqa: ARG002
        """Understand a body."""
        return AskedText(*read_completions_request(body))

    def error(self, error: AjetError) -> dict[str, Any]:
        """OpenAI's error object."""
        return openai_error(error)

    def error_event(self, error: AjetError, position: int) -> bytes:  # noqa: ARG002
        """The SDKs raise on an error object in the stream."""
        return event(object_text(openai_error(error)))


@dataclass(frozen=True, slots=True)
class AskedText(Asked):
    """A request for a text."""

    body: CompletionsBody

    def whole(self, exchange: Exchange, choices: Sequence[Choice]) -> bytes:
        """A ``text_completion``."""
        texts = [
            self.choice(
                exchange,
                choice.choice,
                choice.generation,
                self.echoed(choice.generation) + choice.answer.content,
                choice.finish_reason,
            )
            for choice in choices
        ]
        usage = usage_json(exchange, [choice.generation for choice in choices])
        return object_text({**self.completion(exchange), "usage": usage}, choices=list_text(texts))

    def writer(self, exchange: Exchange) -> TextWriter:
        """Completion after completion, each with more text."""
        return TextWriter(self, exchange)

    def completion(self, exchange: Exchange) -> dict[str, Any]:
        """What all chunks have in common."""
        return {
            "id": exchange.completion_id,
            "object": "text_completion",
            "created": int(exchange.created_at),
            "model": exchange.model_name,
        }

    def choice(  # noqa: PLR0917 - the fields of a choice
        self,
        exchange: Exchange,
        index: int,
        generation: Generation,
        text: str,
        finish_reason: str | None,
        start: int = 0,
    ) -> bytes:
        """JSON of a choice, with its tokens from `start` on."""
        choice: dict[str, Any] = {"index": index, "text": text, "finish_reason": finish_reason}
        choice["logprobs"] = generation.legacy_logprobs(start) if self.request.logprobs else None
        if self.request.return_token_ids:
            choice["token_ids"] = generation.sampled_ids[start:]
            choice["prompt_token_ids"] = exchange.prompt.ids if start == 0 else None
        return object_text(choice)

    def echoed(self, generation: Generation) -> str:
        """The prompt's text, if it is wanted."""
        if not self.body.echo:
            return ""
        return generation.renderer.decode(generation.request.prompt_ids)


@dataclass(slots=True)
class TextWriter(StreamWriter):
    """Writes the completions of one answer."""

    asked: AskedText
    exchange: Exchange
    _generations: dict[int, Generation] = field(default_factory=dict)
    _written: dict[int, int] = field(default_factory=dict)

    def write(self, happened: Event) -> Iterator[bytes]:
        """The completions of a choice."""
        match happened:
            case Started(choice, generation):
                self._generations[choice], self._written[choice] = generation, 0
                if self.asked.body.echo:
                    yield self._more(choice, self.asked.echoed(generation))
            case Grown(choice, delta):
                request = self.exchange.request
                told = request.logprobs or request.return_token_ids
                fresh = len(self._generations[choice].sampled_ids) > self._written[choice]
                if delta.content or (told and fresh):
                    yield self._more(choice, delta.content)
            case Choice(choice, _, _, reason, rest):
                yield self._more(choice, rest.content, reason)

    def heartbeat(self) -> Iterator[bytes]:
        """A comment: a completion without text would be one more part of the answer to some programs."""
        yield COMMENT

    def end(self) -> Iterator[bytes]:
        """The tokens used, if they are wanted, and the mark of the end."""
        if self.exchange.request.include_usage:
            usage = usage_json(self.exchange, list(self._generations.values()))
            completion = self.asked.completion(self.exchange)
            yield event(object_text({**completion, "choices": [], "usage": usage}))
        yield event(b"[DONE]")

    def _more(self, choice: int, text: str, reason: str | None = None) -> bytes:
        generation = self._generations[choice]
        start, self._written[choice] = self._written[choice], len(generation.sampled_ids)
        told = self.asked.choice(self.exchange, choice, generation, text, reason, start)
        completion = self.asked.completion(self.exchange)
        if self.exchange.request.include_usage:
            completion["usage"] = None
        return event(object_text(completion, choices=list_text([told])))
