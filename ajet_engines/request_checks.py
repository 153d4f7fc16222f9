"""Checks for requests that no engine can answer, with the same errors in all engines."""

from __future__ import annotations

from ajet_core.errors import ContextLengthError, RequestError, UnsupportedError
from ajet_core.interfaces.engine import EngineInfo, GenerateRequest

__all__ = ["check_request"]


def check_request(
    request: GenerateRequest,
    info: EngineInfo,
    max_top_logprobs: int,
    *,
    min_p: bool = False,
    penalties: bool = False,
    grammar: bool = False,
) -> None:
    """Refuse a request that is invalid or does not fit the model.

    :param max_top_logprobs: as `EngineCapabilities.max_top_logprobs`; likewise `min_p`,
        `penalties` and `grammar`.
    :raises ContextLengthError: the prompt leaves no room for a token.
    :raises UnsupportedError: the request needs a feature that the engine does not have.
    :raises RequestError: a token id or parameter is out of range.
    """
    prompt, sampling = request.prompt_ids, request.sampling
    if not prompt:
        raise RequestError("the prompt is empty: send at least one token", param="prompt_ids")
    if len(prompt) >= info.max_context:
        raise ContextLengthError(
            f"the prompt has {len(prompt)} tokens, but prompt and completion together are "
            f"limited to {info.max_context}; shorten the prompt",
            param="prompt_ids",
        )
    if not 0 <= request.sampled < len(prompt):
        raise RequestError(
            f"sampled is {request.sampled}; it must be at least 0 and less than the prompt's "
            f"length of {len(prompt)} tokens",
            param="sampled",
        )
    ids = (*sampling.stop_token_ids, min(prompt), max(prompt))
    if not all(0 <= token < info.vocab_size for token in ids):
        raise RequestError(
            f"the prompt contains a token id outside the model's vocabulary of {info.vocab_size}",
            param="prompt_ids",
        )
    if sampling.top_logprobs > max_top_logprobs:
        raise UnsupportedError(
            f"top_logprobs is {sampling.top_logprobs}, but the engine returns at most "
            f"{max_top_logprobs}",
            param="top_logprobs",
        )
    if sampling.is_penalised and not penalties:
        raise UnsupportedError(
            "the engine does not support penalties or logit_bias", param="logit_bias"
        )
    if sampling.min_p and not min_p:
        raise UnsupportedError("the engine does not support min_p", param="min_p")
    if sampling.grammar and not grammar:
        raise UnsupportedError("the engine does not support grammars", param="grammar")
    if not all(0 <= token < info.vocab_size for token, _ in sampling.logit_bias):
        raise RequestError(
            f"logit_bias contains a token id outside the model's vocabulary of {info.vocab_size}",
            param="logit_bias",
        )
    for name, valid, rule in (
        ("max_tokens", sampling.max_tokens >= 1, "at least 1"),
        ("temperature", 0 <= sampling.temperature < float("inf"), "finite and at least 0"),
        ("top_p", 0 < sampling.top_p <= 1, "above 0 and at most 1"),
        ("top_k", sampling.top_k >= 0, "at least 0"),
        ("min_p", 0 <= sampling.min_p <= 1, "at least 0 and at most 1"),
        ("top_logprobs", sampling.top_logprobs >= 0, "at least 0"),
    ):
        if not valid:
            raise RequestError(
                f"{name} is {getattr(sampling, name)}, but must be {rule}", param=name
            )
