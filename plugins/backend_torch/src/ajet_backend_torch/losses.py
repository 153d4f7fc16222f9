"""The policy-gradient loss of sampled tokens, as pure functions of tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ajet_backend_torch.restrictions import Restrictions

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to this, so that exp does not overflow; no clip range is as wide."""


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Scores of N tokens under the model.

    :param logprobs: [N] float32, from logits divided by the sampling temperature.
    :param entropy: [N] float32, in nats, of the distributions that the tokens are drawn from.
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
    restrictions: Restrictions | None = None,
) -> TokenScores:
    """Compute logprobs and entropies from the logits of U places.

    :param logits: [U, vocabulary].
    :param targets: [N] int64.
    :param temperature: [U] float32.
    :param of_place: [N] int64, the place of each target; None if N equals U and target i is at
        place i.
    :param entropy_gradient: whether the entropy is differentiated.
    :param restrictions: what the tokens were sampled from, if not from the policy.
    """
    drawn_from = logits.float()
    if restrictions is not None:
        drawn_from = restrictions(drawn_from)
    everything = torch.log_softmax(drawn_from / temperature[:, None], -1)
    entropy = _entropy(everything if entropy_gradient else everything.detach())
    if of_place is None:
        return TokenScores(everything.gather(1, targets[:, None])[:, 0], entropy)
    return TokenScores(everything[of_place, targets], entropy[of_place])


def _entropy(logprobs: torch.Tensor) -> torch.Tensor:
    """Return [U] from [U, vocabulary]; a logit of -inf adds 0, although 0 * -inf is NaN."""
    if logprobs.requires_grad:
        floor = torch.finfo(logprobs.dtype).min
        return -(logprobs.exp() * logprobs.clamp(min=floor)).sum(-1)
    return -logprobs.exp().mul_(logprobs).nansum(-1)


@dataclass(frozen=True, slots=True)
class Importance:
    """Importance weights of N tokens that may come from other weights.

    :param ratio: [N] old probability divided by behaviour probability, before truncation.
    :param capped: [N] bool, whether the weight is truncated.
    """

    ratio: torch.Tensor
    capped: torch.Tensor


@dataclass(frozen=True, slots=True)
class Surrogate:
    """The clipped surrogate of N tokens.

    :param loss: [N], to be minimised.
    :param ratio: [N] the ratio that is clipped, detached.
    :param clipped: [N] bool, whether the clipped term is the smaller one, so that the gradient is
        0.
    :param importance: None without importance weights.
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
    """Return ``-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)`` with ``r = exp(logprob - old)``.

    PPO (Schulman et al. 2017, arXiv:1707.06347, eq. 7), with separate bounds as in DAPO
    (arXiv:2503.14476). All tensors are [N].

    :param old: logprobs that the policy is compared with: behaviour logprobs, or those before the
        step.
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
    """Multiply a surrogate by ``min(exp(old - behaviour), cap)``, which has no gradient.

    If the surrogate compares policy and old, the result is the decoupled objective (Hilton et al.
    2021, arXiv:2110.00641; AReaL, arXiv:2505.24298), with the importance weight truncated as in
    IMPALA (Espeholt et al. 2018, arXiv:1802.01561).

    :param old: [N] logprobs under the weights before the step.
    :param behaviour: [N] logprobs under the weights that sampled.
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
    """Return [N] estimates of KL(policy || reference) in nats, never negative.

    ``exp(d) - d - 1`` with ``d = reference - logprob`` (Schulman, "Approximating KL divergence",
    k3).
    """
    difference = (reference - logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return torch.expm1(difference) - difference
