"""The body of ``POST /v1/completions``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, ValidationError

from ajet_core.errors import RequestError, UnsupportedError
from ajet_server.gateway.formats.bodies import (
    Body,
    LogitBias,
    Neutral,
    Penalty,
    Seed,
    StreamOptions,
    Temperature,
    TopK,
    TopP,
    ignored_names,
    logit_bias,
    read_object,
    refuse_unsupported,
    request_error,
    stop_strings,
)
from ajet_server.gateway.formats.request import ModelRequest

ID_PREFIX = "cmpl-"
# What OpenAI takes if nothing is said.
_MAX_TOKENS = 16
_REFUSED: Neutral = {
    "best_of": (1,),
    "suffix": ("",),
}


class CompletionsBody(Body):
    """The keys with a meaning here."""

    prompt: Any = None
    model: str | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
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

    :raises UnsupportedError: it asks for something that cannot be honoured; `param` names it.
    :raises RequestError: it is no JSON object of the right form; `param` names the field.
    """
    try:
        parsed = CompletionsBody.model_validate(read_object(body))
    except ValidationError as error:
        raise request_error(error) from error
    extra = parsed.model_extra or {}
    refuse_unsupported(extra, _REFUSED, {})
    if parsed.echo and parsed.logprobs is not None:
        raise UnsupportedError(
            "echo together with logprobs is not supported: prompts have no logprobs here",
            param="echo",
        )
    request = ModelRequest(
        id_prefix=ID_PREFIX,
        prompt=_prompt(parsed.prompt),
        n=parsed.n or 1,
        max_tokens=parsed.max_tokens or _MAX_TOKENS,
        temperature=1.0 if parsed.temperature is None else parsed.temperature,
        top_p=parsed.top_p or 1.0,
        top_k=max(0, parsed.top_k or 0),
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
        raise RequestError("prompt: there is nothing to continue", param="prompt")
    raise RequestError("prompt: expected a text or a list of token ids", param="prompt")
