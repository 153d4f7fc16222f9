"""The policy-gradient loss of sampled tokens. Pure functions of tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch

MAX_LOG_RATIO = 20.0
"""Log-ratios are cut off here, before exp overflows; such tokens are far outside any clip range."""


@dataclass(frozen=True, slots=True)
class TokenScores:
    """What the model says of N tokens.

    :param logprobs: [N] float32 of the tokens, logits divided by their sampling temperature.
    :param entropy: [N] float32 nats of the distributions they were drawn from.
    """

    logprobs: torch.Tensor
    entropy: torch.Tensor


def score_tokens(
    logits: torch.Tensor,
    targets: torch.Tensor,
    temperature: torch.Tensor,
    *,
    entropy_gradient: bool = False,
) -> TokenScores:
    """Logprobs and entropies from logits.

    :param logits: [N, vocabulary].
    :param targets: [N] int64.
    :param temperature: [N] float32.
    :param entropy_gradient: whether the entropy is differentiated.
    """
    everything = torch.log_softmax(logits.float() / temperature[:, None], -1)
    logprobs = everything.gather(1, targets[:, None])[:, 0]
    source = everything if entropy_gradient else everything.detach()
    # A logit of -inf has probability 0 and adds nothing, where 0 * -inf would be NaN.
    weighted = source.exp() * source.clamp(min=torch.finfo(source.dtype).min)
    return TokenScores(logprobs=logprobs, entropy=-weighted.sum(-1))


@dataclass(frozen=True, slots=True)
class Surrogate:
    """The clipped surrogate of N tokens.

    :param loss: [N], to be minimised.
    :param ratio: [N] policy over behaviour probability, detached.
    :param clipped: [N] bool, where the clipped term is the one that counts, so that the gradient is 0.
    """

    loss: torch.Tensor
    ratio: torch.Tensor
    clipped: torch.Tensor


def clipped_surrogate(
    logprobs: torch.Tensor,
    behaviour: torch.Tensor,
    advantage: torch.Tensor,
    clip_low: float,
    clip_high: float,
) -> Surrogate:
    """``-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)`` with ``r = exp(logprob - behaviour)``.

    PPO (Schulman et al. 2017, arXiv:1707.06347, eq. 7), with separate bounds as DAPO (arXiv:2503.14476).
    All arguments [N].
    """
    log_ratio = (logprobs - behaviour).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = log_ratio.exp()
    plain = ratio * advantage
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high) * advantage
    return Surrogate(
        loss=-torch.minimum(plain, bounded),
        ratio=ratio.detach(),
        clipped=(bounded < plain).detach(),
    )


def k3(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """[N] estimate of KL(policy || reference) in nats, never negative.

    ``exp(d) - d - 1`` with ``d = reference - logprob`` (Schulman, "Approximating KL divergence", k3).
    """
    difference = (reference - logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return torch.expm1(difference) - difference
