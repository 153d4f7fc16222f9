"""OpenAI's text completions, ``POST /v1/completions``: continue a prompt without a template."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field, ValidationError

from ajet_core.errors import AjetError, RequestError, UnsupportedError
from ajet_server.gateway.formats.bodies import (
    Body,
    LogitBias,
    MinP,
    Neutral,
    Penalty,
    Seed,
    StreamOptions,
    Temperature,
    TopK,
    TopP,
    ignored_names,
    list_text,
    logit_bias,
    object_text,
    read_object,
    refuse_unsupported,
    request_error,
    stop_strings,
)
from ajet_server.gateway.formats.chat import usage_json
from ajet_server.gateway.formats.dialect import (
    COMMENT,
    Dialect,
    DialectRequest,
    StreamWriter,
    event,
)
from ajet_server.gateway.formats.events import Choice, ChoiceDelta, Event, Started
from ajet_server.gateway.formats.exchange import Exchange, Session
from ajet_server.gateway.formats.generation import Generation
from ajet_server.gateway.formats.openai_errors import openai_error
from ajet_server.gateway.formats.request import ModelRequest

ID_PREFIX = "cmpl-"
# OpenAI's default.
_MAX_TOKENS = 16
_REFUSED: Neutral = {
    "best_of": (1,),
    "suffix": ("",),
}


class CompletionsBody(Body):
    """The supported keys of a request body."""

    prompt: Any = None
    model: str | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    seed: Seed | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    stop: Any = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None
    return_token_ids: bool | None = None


def read_completions_request(body: bytes) -> tuple[ModelRequest, CompletionsBody]:
    """Read a request body.

    :raises UnsupportedError: the request needs an unsupported feature; `param` names it.
    :raises RequestError: the body is malformed; `param` names the field.
    """
    try:
        parsed = CompletionsBody.model_validate(read_object(body))
    except ValidationError as error:
        raise request_error(error) from error
    extra = parsed.model_extra or {}
    refuse_unsupported(extra, _REFUSED, {})
    if parsed.echo and parsed.logprobs is not None:
        raise UnsupportedError(
            "echo together with logprobs is not supported: this server computes no logprobs "
            "of prompts",
            param="echo",
        )
    request = ModelRequest(
        id_prefix=ID_PREFIX,
        model=parsed.model or "",
        prompt=_prompt(parsed.prompt),
        n=parsed.n or 1,
        max_tokens=parsed.max_tokens or _MAX_TOKENS,
        temperature=1.0 if parsed.temperature is None else parsed.temperature,
        top_p=parsed.top_p or 1.0,
        top_k=max(0, parsed.top_k or 0),
        min_p=parsed.min_p or 0.0,
        seed=parsed.seed,
        frequency_penalty=parsed.frequency_penalty or 0.0,
        presence_penalty=parsed.presence_penalty or 0.0,
        logit_bias=logit_bias(parsed.logit_bias),
        stop=stop_strings(parsed.stop),
        stream=bool(parsed.stream),
        include_usage=bool(parsed.stream_options and parsed.stream_options.include_usage),
        logprobs=parsed.logprobs is not None,
        top_logprobs=parsed.logprobs or 0,
        return_token_ids=bool(parsed.return_token_ids),
        ignored=ignored_names(extra, _REFUSED),
    )
    return request, parsed


def _prompt(prompt: Any) -> str | tuple[int, ...]:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        (prompt,) = prompt
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return tuple(prompt)
    if isinstance(prompt, list) and len(prompt) > 1:
        raise UnsupportedError(
            "prompt: several prompts in one request are not supported: send one request for each",
            param="prompt",
        )
    if prompt in (None, "", []):
        raise RequestError("prompt: must not be empty", param="prompt")
    raise RequestError("prompt: expected a string or a list of token ids", param="prompt")


class CompletionsDialect(Dialect):
    """``POST /v1/completions``."""

    summary = "OpenAI text completions"

    def read(self, body: bytes, session: Session) -> CompletionRequest:  # noqa: ARG002
        """Parse a body."""
        return CompletionRequest(*read_completions_request(body))

    def error(self, error: AjetError) -> dict[str, Any]:
        """Return OpenAI's error object."""
        return openai_error(error)

    def error_event(self, error: AjetError, position: int) -> bytes:  # noqa: ARG002
        """Return an error object as an event, on which the SDKs raise."""
        return event(object_text(openai_error(error)))


@dataclass(frozen=True, slots=True)
class CompletionRequest(DialectRequest):
    """A request for a text completion."""

    body: CompletionsBody

    def whole(self, exchange: Exchange, choices: Sequence[Choice]) -> bytes:
        """Return a ``text_completion``."""
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
        """Return a writer of completions, each of which has more text."""
        return TextWriter(self, exchange)

    def completion(self, exchange: Exchange) -> dict[str, Any]:
        """Return the fields that all chunks have in common."""
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
        """Return the JSON of a choice, with its tokens from `start` on."""
        choice: dict[str, Any] = {"index": index, "text": text, "finish_reason": finish_reason}
        choice["logprobs"] = generation.legacy_logprobs(start) if self.request.logprobs else None
        if self.request.return_token_ids:
            choice["token_ids"] = generation.sampled_ids[start:]
            choice["prompt_token_ids"] = exchange.prompt.ids.tolist() if start == 0 else None
        return object_text(choice)

    def echoed(self, generation: Generation) -> str:
        """Return the prompt's text if the request set ``echo``, else ""."""
        if not self.body.echo:
            return ""
        return generation.renderer.decode(generation.request.prompt_ids)


@dataclass(slots=True)
class TextWriter(StreamWriter):
    """Writes the completions of one answer."""

    asked: CompletionRequest
    exchange: Exchange
    _generations: dict[int, Generation] = field(default_factory=dict)
    _written: dict[int, int] = field(default_factory=dict)

    def write(self, happened: Event) -> Iterator[bytes]:
        """Yield the completions of a choice."""
        match happened:
            case Started(choice, generation):
                self._generations[choice], self._written[choice] = generation, 0
                if self.asked.body.echo:
                    yield self._more(choice, self.asked.echoed(generation))
            case ChoiceDelta(choice, delta):
                request = self.exchange.request
                shows_tokens = request.logprobs or request.return_token_ids
                fresh = len(self._generations[choice].sampled_ids) > self._written[choice]
                if delta.content or (shows_tokens and fresh):
                    yield self._more(choice, delta.content)
            case Choice(choice, _, _, reason, rest):
                yield self._more(choice, rest.content, reason)

    def heartbeat(self) -> Iterator[bytes]:
        """Yield a comment: some programs treat a completion without text as part of the answer."""
        yield COMMENT

    def end(self) -> Iterator[bytes]:
        """Yield the usage, if it was requested, and the end of the stream."""
        if self.exchange.request.include_usage:
            usage = usage_json(self.exchange, list(self._generations.values()))
            completion = self.asked.completion(self.exchange)
            yield event(object_text({**completion, "choices": [], "usage": usage}))
        yield event(b"[DONE]")

    def _more(self, choice: int, text: str, reason: str | None = None) -> bytes:
        generation = self._generations[choice]
        start, self._written[choice] = self._written[choice], len(generation.sampled_ids)
        its_choice = self.asked.choice(self.exchange, choice, generation, text, reason, start)
        completion = self.asked.completion(self.exchange)
        if self.exchange.request.include_usage:
            completion["usage"] = None
        return event(object_text(completion, choices=list_text([its_choice])))
