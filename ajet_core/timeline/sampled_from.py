"""The distribution that a call's tokens were sampled from, where it is not the policy's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SampledFrom:
    """What T tokens were sampled from: ``softmax((logits + added) / temperature)`` of kept ones.

    ``added`` are the bias and the penalties, which count the call's tokens before the sampled one.

    :param logprobs: [T] log-probability of each token under this distribution.
    :param kept: the distinct sets of kept tokens, each as ascending little-endian uint32: the first
        id of a run of kept ids, the id after its last, and so on.
    :param kept_of: [T] index into `kept`; -1 if all tokens were kept.
    :param frequency_penalty: as in `ajet_core.interfaces.SamplingParams`; likewise the others.
    """

    logprobs: list[float]
    kept: list[bytes]
    kept_of: list[int]
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    @classmethod
    def of(cls, tokens: Sequence[tuple[float, bytes]]) -> SampledFrom:
        """Create it from `GenerateChunk.sampled_from` of T tokens, to which nothing was added."""
        kept = list(dict.fromkeys([b"", *(kept for _, kept in tokens)]))
        numbers = {one: number for number, one in enumerate(kept, -1)}
        return cls([lp for lp, _ in tokens], kept[1:], [numbers[one] for _, one in tokens])
