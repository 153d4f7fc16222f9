"""What tokens are drawn from where that is not the policy: what engines make of a request's `SamplingParams`."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec

from ajet_core.errors import RequestError, UnsupportedError
from ajet_core.interfaces import GenerateRequest, SamplingParams
from ajet_engines.in_server.ajet_shaping import Grammars, Shaping, told

__all__ = ["Shaping", "Shapings", "is_shaped", "sampling_overrides"]


class Shapings:
    """Makes the shaping of requests over a model's tokens. Needs numpy, and llguidance for grammars.

    :param model: the model's directory.
    :param size: of the vocabulary.
    """

    def __init__(self, model: str, size: int) -> None:
        self._grammars = Grammars(model, size)

    def begin(self, request: GenerateRequest) -> Shaping | None:
        """The shaping of a request's next token; None if the policy is drawn from.

        With a grammar it takes milliseconds, the first time perhaps a second.

        :raises UnsupportedError: a grammar, and the model has no tokenizer file, or the request no stop token.
        :raises RequestError: the grammar is none, or says what cannot be enforced.
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
        """`begin`, in a thread if it takes its time."""
        if request.sampling.grammar:
            return await asyncio.to_thread(self.begin, request)
        return self.begin(request)

    def _matcher(self, sampling: SamplingParams) -> object:
        if find_spec("llguidance") is None:
            raise UnsupportedError(
                "grammars need llguidance: pip install llguidance", param="grammar"
            )
        if not sampling.stop_token_ids:
            raise UnsupportedError("a grammar needs a stop token to end with", param="grammar")
        if not self._grammars.file.is_file():
            raise UnsupportedError(
                f"grammars need the model's tokens, and {self._grammars.file} is missing",
                param="grammar",
            )
        try:
            return self._grammars.matcher(sampling.grammar, sampling.stop_token_ids)
        except ValueError as error:
            raise RequestError(f"this cannot be enforced: {error}", param="grammar") from error


def is_shaped(sampling: SamplingParams) -> bool:
    """Whether penalties, a bias or a grammar change what is drawn from."""
    return sampling.is_penalised or bool(sampling.grammar)


def sampling_overrides(request: GenerateRequest) -> str:
    """For `ajet_engines.in_server.ajet_shaping.Followed`; "" if the policy is drawn from."""
    sampling = request.sampling
    if not is_shaped(sampling):
        return ""
    return told(
        frequency=sampling.frequency_penalty,
        presence=sampling.presence_penalty,
        bias=sampling.logit_bias,
        grammar=sampling.grammar,
        stops=sampling.stop_token_ids,
        sampled=request.sampled,
    )
