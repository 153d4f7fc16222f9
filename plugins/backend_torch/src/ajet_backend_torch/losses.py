"""The policy-gradient loss of sampled tokens. Pure functions of tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    of_place: torch.Tensor | None = None,
    *,
    entropy_gradient: bool = False,
) -> TokenScores:
    """Logprobs and entropies from the logits of U places.

    :param logits: [U, vocabulary].
    :param targets: [N] int64.
    :param temperature: [U] float32.
    :param of_place: [N] int64 the place of each target; None if N is U and each has its own.
    :param entropy_gradient: whether the entropy is differentiated.
    """
    everything = torch.log_softmax(logits.float() / temperature[:, None], -1)
    entropy = _entropy(everything if entropy_gradient else everything.detach())
    if of_place is None:
        return TokenScores(everything.gather(1, targets[:, None])[:, 0], entropy)
    return TokenScores(everything[of_place, targets], entropy[of_place])


def _entropy(logprobs: torch.Tensor) -> torch.Tensor:
    """[U] from [U, vocabulary]. A logit of -inf has probability 0 and adds nothing, where 0 * -inf would be NaN."""
    if logprobs.requires_grad:
        floor = torch.finfo(logprobs.dtype).min
        return -(logprobs.exp() * logprobs.clamp(min=floor)).sum(-1)
    return -logprobs.exp().mul_(logprobs).nansum(-1)


@dataclass(frozen=True, slots=True)
class Importance:
    """What N tokens weigh that other weights may have sampled.

    :param ratio: [N] old over behaviour probability, not truncated.
    :param capped: [N] bool, where it is truncated.
    """

    ratio: torch.Tensor
    capped: torch.Tensor


@dataclass(frozen=True, slots=True)
class Surrogate:
    """The clipped surrogate of N tokens.

    :param loss: [N], to be minimised.
    :param ratio: [N] the ratio that is clipped, detached.
    :param clipped: [N] bool, where the clipped term is the one that counts, so that the gradient is 0.
    :param importance: None if nothing is weighed by it.
    """

    loss: torch.Tensor
    ratio: torch.Tensor
    clipped: torch.Tensor
    importance: Importance | None = None


def clipped_surrogate(
    logprobs: torch.Tensor,
    old: torch.Tensor,
    advantage: torch.Tensor,
    clip_low: float,
    clip_high: float,
) -> Surrogate:
    """``-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)`` with ``r = exp(logprob - old)``.

    PPO (Schulman et al. 2017, arXiv:1707.06347, eq. 7), with separate bounds as DAPO (arXiv:2503.14476).

    :param old: [N] what the policy is compared with: behaviour logprobs, or those before the step; as all others [N].
    """
    ratio = _ratio(logprobs, old)
    plain = ratio * advantage
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high) * advantage
    return Surrogate(
        loss=-torch.minimum(plain, bounded),
        ratio=ratio.detach(),
        clipped=(bounded < plain).detach(),
    )


def weighed(
    surrogate: Surrogate, old: torch.Tensor, behaviour: torch.Tensor, cap: float
) -> Surrogate:
    """The surrogate times ``min(exp(old - behaviour), cap)``, which has no gradient.

    Of a surrogate that compares policy and old this makes the decoupled objective (Hilton et al. 2021,
    arXiv:2110.00641; AReaL, arXiv:2505.24298), its importance weight truncated as in IMPALA (Espeholt et al. 2018,
    arXiv:1802.01561).

    :param old: [N] logprobs under the weights before the step, as `behaviour`.
    """
    importance = _ratio(old, behaviour).detach()
    return replace(
        surrogate,
        loss=surrogate.loss * importance.clamp(max=cap),
        importance=Importance(importance, importance > cap),
    )


def _ratio(logprobs: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    return (logprobs - others).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def k3(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """[N] estimate of KL(policy || reference) in nats, never negative.

    ``exp(d) - d - 1`` with ``d = reference - logprob`` (Schulman, "Approximating KL divergence", k3).
    """
    difference = (reference - logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return torch.expm1(difference) - difference
