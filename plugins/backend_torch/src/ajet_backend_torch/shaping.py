"""What one request's tokens are drawn from, where that is not the policy: penalties, bias, grammar."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ajet_core.errors import RequestError, UnsupportedError
from ajet_core.interfaces import SamplingParams


class Shaping:
    """What is added to the logits of a request's next token.

    :param matcher: llguidance's, of the grammar; None if there is none.
    :param sampled: tokens that were sampled before.
    """

    def __init__(self, sampling: SamplingParams, vocab_size: int, matcher: Any) -> None:
        self._frequency = sampling.frequency_penalty
        self._presence = sampling.presence_penalty
        self._matcher = matcher
        self._counts: dict[int, int] = {}
        self._added = torch.zeros(vocab_size)
        for token_id, bias in sampling.logit_bias:
            self._added[token_id] += bias

    def row(self) -> torch.Tensor:
        """[vocabulary] float32, minus infinity for tokens that may not come."""
        if self._matcher is None:
            return self._added
        mask = torch.frombuffer(bytearray(self._matcher.compute_bitmask()), dtype=torch.uint8)
        bits = (mask[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1
        allowed = bits.flatten()[: len(self._added)].bool()
        return self._added.masked_fill(~allowed, -torch.inf)

    def take(self, token_id: int) -> None:
        """A token was sampled."""
        if self._matcher is not None:
            self._matcher.consume_token(token_id)
        if self._frequency or self._presence:
            before = self._counts.get(token_id, 0)
            self._counts[token_id] = before + 1
            self._added[token_id] -= self._frequency + (0.0 if before else self._presence)


class Grammars:
    """Makes matchers of grammars over a model's tokens.

    :param model: the model's directory.
    """

    def __init__(self, model: str, vocab_size: int) -> None:
        self._file = Path(model) / "tokenizer.json"
        self._vocab_size = vocab_size
        self._tokenizers: dict[tuple[int, ...], Any] = {}

    def matcher(self, grammar: str, stop_token_ids: tuple[int, ...]) -> Any:
        """A matcher at the beginning of a completion. Takes milliseconds, the first one perhaps a second.

        :param stop_token_ids: one of them ends what matches.
        :raises UnsupportedError: the model has no tokenizer file, or the request no stop token.
        :raises RequestError: the grammar is none, or says what cannot be enforced.
        """
        # Here: few requests need it.
        import llguidance

        if not stop_token_ids:
            raise UnsupportedError("a grammar needs a stop token to end with", param="grammar")
        tokenizer = self._tokenizers.get(stop_token_ids)
        if tokenizer is None:
            if not self._file.is_file():
                raise UnsupportedError(
                    f"grammars need the model's tokens, and {self._file} is missing",
                    param="grammar",
                )
            tokenizer = llguidance.LLTokenizer(
                str(self._file), n_vocab=self._vocab_size, eos_token=list(stop_token_ids)
            )
            self._tokenizers[stop_token_ids] = tokenizer
        matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise RequestError(
                f"this cannot be enforced: {matcher.get_error().splitlines()[0]}", param="grammar"
            )
        return matcher
