"""Probe requests that check whether a server's logprobs are those of the full distribution."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from ajet_core.interfaces import GenerateRequest, SamplingParams
from ajet_engines.served.api import Piece

__all__ = ["PROBE", "PROBED_IDS", "is_scaled", "is_whole", "probed"]

PROBE = SamplingParams(max_tokens=1, top_logprobs=20)
PROBED_IDS = (1, 2, 3)

# Two distributions whose logprobs differ by less than this cannot be told apart.
_TELLING = 1e-3
_TOLERANCE = 0.05


async def probed(
    sample: Callable[[GenerateRequest], AsyncIterator[Piece]], sampling: SamplingParams
) -> tuple[int, list[float]]:
    """Return the token after a prompt, and the top logprobs, most likely first.

    :param sample: as `ajet_engines.served.ModelServer.sample`.
    """
    request = GenerateRequest("probe", list(PROBED_IDS), sampling)
    sampled, logprobs = -1, list[float]()
    async for piece in sample(request):
        if piece.top_logprobs:
            (sampled,) = piece.token_ids
            logprobs = [logprob for _, logprob in piece.top_logprobs[0]]
    return sampled, logprobs


def is_scaled(once: list[float], twice: list[float]) -> bool:
    """Return whether logprobs at temperature 2 come from half the logits of those at 1."""
    spread = once[0] - once[-1]
    return spread <= _TELLING or abs((twice[0] - twice[-1]) / spread - 0.5) <= _TOLERANCE


def is_whole(logprobs: list[float], whole: list[float]) -> bool:
    """Return whether logprobs under cut or shaped sampling are those of the full distribution.

    The second logprob decides: its probability is at most a half, so it is never so close to 0 that
    rounding matters; in a cut distribution it is infinite or very different.
    """
    return abs(logprobs[1] - whole[1]) < _TOLERANCE * abs(whole[1])
