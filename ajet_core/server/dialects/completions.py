"""OpenAI's text completions: a prompt is continued as it is."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from ajet_core.errors import AjetError
from ajet_core.server.dialects.chat_json import usage_json
from ajet_core.server.dialects.completions_request import (
    CompletionsBody,
    read_completions_request,
)
from ajet_core.server.dialects.dialect import Asked, Dialect, event
from ajet_core.server.dialects.events import Choice, Event, Grown, Started
from ajet_core.server.dialects.exchange import Exchange, Session
from ajet_core.server.dialects.generation import Generation
from ajet_core.server.dialects.json_text import list_text, object_text
from ajet_core.server.dialects.openai_errors import openai_error


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
            self._choice(
                exchange,
                choice.choice,
                choice.generation,
                self._echoed(choice.generation) + choice.answer.content,
                choice.finish_reason,
            )
            for choice in choices
        ]
        usage = usage_json(exchange, [choice.generation for choice in choices])
        return object_text({**self._completion(exchange), "usage": usage}, choices=list_text(texts))

    async def stream(
        self, exchange: Exchange, events: AsyncIterator[Event]
    ) -> AsyncGenerator[bytes, None]:
        """Completion after completion, each with more text."""
        generations: dict[int, Generation] = {}
        written: dict[int, int] = {}
        for_usage = {"usage": None} if self.request.include_usage else {}

        def chunk(choice: int, text: str, reason: str | None = None) -> bytes:
            generation = generations[choice]
            start, written[choice] = written[choice], len(generation.sampled_ids)
            told = self._choice(exchange, choice, generation, text, reason, start)
            return event(
                object_text({**self._completion(exchange), **for_usage}, choices=list_text([told]))
            )

        async for happened in events:
            match happened:
                case Started(choice, generation):
                    generations[choice], written[choice] = generation, 0
                    if self.body.echo:
                        yield chunk(choice, self._echoed(generation))
                case Grown(choice, delta):
                    told = self.request.logprobs or self.request.return_token_ids
                    fresh = len(generations[choice].sampled_ids) > written[choice]
                    if delta.content or (told and fresh):
                        yield chunk(choice, delta.content)
                case Choice(choice, _, _, reason, rest):
                    yield chunk(choice, rest.content, reason)
        if self.request.include_usage:
            usage = usage_json(exchange, list(generations.values()))
            yield event(object_text({**self._completion(exchange), "choices": [], "usage": usage}))
        yield event(b"[DONE]")

    def _completion(self, exchange: Exchange) -> dict[str, Any]:
        return {
            "id": exchange.completion_id,
            "object": "text_completion",
            "created": int(exchange.created_at),
            "model": exchange.model_name,
        }

    def _choice(  # noqa: PLR0917 - the fields of a choice
        self,
        exchange: Exchange,
        index: int,
        generation: Generation,
        text: str,
        finish_reason: str | None,
        start: int = 0,
    ) -> bytes:
        choice: dict[str, Any] = {"index": index, "text": text, "finish_reason": finish_reason}
        choice["logprobs"] = generation.legacy_logprobs(start) if self.request.logprobs else None
        if self.request.return_token_ids:
            choice["token_ids"] = generation.sampled_ids[start:]
            choice["prompt_token_ids"] = exchange.prompt.ids if start == 0 else None
        return object_text(choice)

    def _echoed(self, generation: Generation) -> str:
        if not self.body.echo:
            return ""
        return generation.renderer.decode(generation.request.prompt_ids)
