"""Logprobs that a server is asked for when it is met, of which it is known what they have to be."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from ajet_core.interfaces import GenerateRequest, SamplingParams
from ajet_engines.served.api import Piece

PROBE = SamplingParams(max_tokens=1, top_logprobs=20)
PROBED_IDS = (1, 2, 3)

# Two distributions that differ by so little in their logprobs say nothing about which of them it is.
_TELLING = 1e-3
_TOLERANCE = 0.05


async def probed(
    sample: Callable[[GenerateRequest], AsyncIterator[Piece]], sampling: SamplingParams
) -> tuple[int, list[float]]:
    """The token that comes after a prompt, and the logprobs of the most likely ones, most likely first.

    :param sample: as `ajet_engines.served.ModelServer.sample`.
    """
    request = GenerateRequest("probe", list(PROBED_IDS), sampling)
    sampled, found = -1, list[float]()
    async for piece in sample(request):
        if piece.top_logprobs:
            (sampled,) = piece.token_ids
            found = [logprob for _, logprob in piece.top_logprobs[0]]
    return sampled, found


def is_scaled(once: list[float], twice: list[float]) -> bool:
    """Whether logprobs at temperature 2 are of half the logits of those at 1."""
    spread = once[0] - once[-1]
    return spread <= _TELLING or abs((twice[0] - twice[-1]) / spread - 0.5) <= _TOLERANCE


def is_whole(found: list[float], whole: list[float]) -> bool:
    """Whether logprobs of what was cut or shaped are those of the whole distribution nevertheless.

    The second tells: its probability is a half at most, so that its logprob is never so near to 0 that rounding decides, and of
    what is left of a distribution it is not finite, or another by far.
    """
    return abs(found[1] - whole[1]) < _TOLERANCE * abs(whole[1])
