"""Shaping of sampling distributions by the penalties, bias and grammar of `SamplingParams`."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec

from ajet_core.errors import RequestError, UnsupportedError
from ajet_core.interfaces import GenerateRequest, SamplingParams
from ajet_engines.in_server.ajet_shaping import Grammars, Shaping, encoded_shaping

__all__ = ["Shaping", "Shapings", "is_shaped", "sampling_overrides"]


class Shapings:
    """Creates the shaping of requests over a model's tokens.

    Needs numpy, and llguidance for grammars.

    :param model: the model's directory.
    :param size: size of the vocabulary.
    """

    def __init__(self, model: str, size: int) -> None:
        self._grammars = Grammars(model, size)

    def begin(self, request: GenerateRequest) -> Shaping | None:
        """Create the shaping of a request; None if tokens are sampled from the policy.

        With a grammar this takes milliseconds, the first time perhaps a second.

        :raises UnsupportedError: the request has a grammar, but the model has no tokenizer file or
            the request no stop token.
        :raises RequestError: the grammar is invalid or cannot be enforced.
        """
        sampling = request.sampling
        if not is_shaped(sampling):
            return None
        shaping = Shaping(
            self._grammars.size,
            frequency=sampling.frequency_penalty,
            presence=sampling.presence_penalty,
            bias=sampling.logit_bias,
            matcher=self._matcher(sampling) if sampling.grammar else None,
            stops=sampling.stop_token_ids,
        )
        for token_id in request.prompt_ids[len(request.prompt_ids) - request.sampled :]:
            shaping.take(token_id)
        return shaping

    async def prepared(self, request: GenerateRequest) -> Shaping | None:
        """Create the shaping as `begin` does, in a thread if there is a grammar."""
        if request.sampling.grammar:
            return await asyncio.to_thread(self.begin, request)
        return self.begin(request)

    def _matcher(self, sampling: SamplingParams) -> object:
        if find_spec("llguidance") is None:
            raise UnsupportedError(
                "grammars require llguidance: pip install llguidance", param="grammar"
            )
        if not sampling.stop_token_ids:
            raise UnsupportedError("a grammar needs a stop token to end with", param="grammar")
        if not self._grammars.file.is_file():
            raise UnsupportedError(
                f"grammars require the model's tokens, but {self._grammars.file} is missing",
                param="grammar",
            )
        try:
            return self._grammars.matcher(sampling.grammar, sampling.stop_token_ids)
        except ValueError as error:
            raise RequestError(f"this cannot be enforced: {error}", param="grammar") from error


def is_shaped(sampling: SamplingParams) -> bool:
    """Return whether penalties, a bias or a grammar change the sampling distribution."""
    return sampling.is_penalised or bool(sampling.grammar)


def sampling_overrides(request: GenerateRequest) -> str:
    """Encode a request's shaping for `Followed`; "" if tokens are sampled from the policy."""
    sampling = request.sampling
    if not is_shaped(sampling):
        return ""
    return encoded_shaping(
        frequency=sampling.frequency_penalty,
        presence=sampling.presence_penalty,
        bias=sampling.logit_bias,
        grammar=sampling.grammar,
        stops=sampling.stop_token_ids,
        sampled=request.sampled,
    )
