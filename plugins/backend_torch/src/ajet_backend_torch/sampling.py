"""Sample next tokens for many requests at once, each with its own parameters."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class RowSampling:
    """Sampling parameters of n rows. None means the default for all rows, which is the fast path.

    :param temperature: [n] float32 divisors of the logits, 1 for greedy rows; None: all 1.
    :param greedy: [n] bool, rows that take the most likely token; None: no row.
    :param cut_rows: [m] int64, rows with top-p, top-k or min-p; None: no row.
    :param top_p: [m] float32, 1 disables it.
    :param top_k: [m] int64, the vocabulary size disables it.
    :param min_p: [m] float32, 0 disables it.
    :param cut_width: the largest of `top_k`, known in advance to avoid waiting for a GPU.
    :param shaped_rows: [s] int64, rows that are not drawn from the policy itself; None: no row.
    :param shaping: [s, vocabulary] float32, added to the logits of these rows before drawing.
    :param reported_rows: [q] int64, rows whose distributions are returned; None: no row.
    """

    temperature: torch.Tensor | None = None
    greedy: torch.Tensor | None = None
    cut_rows: torch.Tensor | None = None
    top_p: torch.Tensor | None = None
    top_k: torch.Tensor | None = None
    min_p: torch.Tensor | None = None
    cut_width: int = 0
    shaped_rows: torch.Tensor | None = None
    shaping: torch.Tensor | None = None
    reported_rows: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Sampled:
    """Sampled tokens.

    :param ids: [n] int64.
    :param logprobs: [n] float32, of `ids` under the uncut distribution.
    :param all_logprobs: [n, vocabulary] float32.
    :param reported: [q, vocabulary] float32 log-probabilities that the tokens of
        `RowSampling.reported_rows` were drawn with; minus infinity for tokens that were not kept.
    """

    ids: torch.Tensor
    logprobs: torch.Tensor
    all_logprobs: torch.Tensor
    reported: torch.Tensor | None = None


def sample(logits: torch.Tensor, rows: RowSampling, uniforms: torch.Tensor) -> Sampled:
    """Sample one token for each row by inverting the cumulative distribution.

    A request's tokens depend only on its own uniform numbers, not on the other rows.

    :param logits: [n, vocabulary] of any float dtype; a row that is not finite gives a NaN logprob.
    :param uniforms: [n] float64 in [0, 1).
    """
    logits = logits.float()
    drawn_from = logits
    if rows.shaped_rows is not None and rows.shaping is not None:
        drawn_from = logits.index_add(0, rows.shaped_rows, rows.shaping)
    if rows.temperature is not None:
        is_shaped = drawn_from is not logits
        logits = logits / rows.temperature[:, None]
        drawn_from = drawn_from / rows.temperature[:, None] if is_shaped else logits
    logprobs = torch.log_softmax(logits, -1)
    drawn = logprobs if drawn_from is logits else torch.log_softmax(drawn_from, -1)
    ids = _invert(drawn.exp(), uniforms)
    kept = None
    if rows.cut_rows is not None:
        cut = drawn[rows.cut_rows]
        ids[rows.cut_rows], order, weights = _sample_cut(cut, rows, uniforms[rows.cut_rows])
        if rows.reported_rows is not None:
            kept = torch.ones_like(drawn, dtype=torch.bool)
            kept[rows.cut_rows] = torch.zeros_like(cut, dtype=torch.bool).scatter_(
                1, order, weights > 0
            )
    if rows.greedy is not None:
        ids = torch.where(rows.greedy, drawn.argmax(-1), ids)
    chosen = logprobs.gather(1, ids[:, None])[:, 0]
    reported = None
    if rows.reported_rows is not None:
        # From the logits, as a trainer computes it: the results are the same to the bit.
        reported = drawn_from[rows.reported_rows]
        if kept is not None:
            reported = reported.masked_fill(~kept[rows.reported_rows], -torch.inf)
        reported = torch.log_softmax(reported, -1)
    return Sampled(ids=ids, logprobs=chosen, all_logprobs=logprobs, reported=reported)


def kept_sets(reported: torch.Tensor) -> list[bytes]:
    """Return the kept tokens of each row of `Sampled.reported`, as `GenerateChunk.sampled_from`."""
    kept = torch.nn.functional.pad(~reported.isneginf(), (1, 1))
    row, edge = (kept[:, 1:] != kept[:, :-1]).nonzero(as_tuple=True)
    edges = edge.to(torch.int32).cpu().numpy().astype("<u4")
    ends = row.bincount(minlength=len(reported)).cumsum(0).tolist()
    every = np.array([0, reported.shape[1]], "<u4").tobytes()
    sets = [edges[start:end].tobytes() for start, end in pairwise([0, *ends])]
    return [b"" if one == every else one for one in sets]


def _invert(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Return [n] indices of the weight at each row's quantile; weights [n, k] need not sum to 1."""
    # float64, because a parallel float32 scan is not monotone to the last bit and could select a
    # weight of zero.
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    target = uniforms[:, None] * cumulative[:, -1:]
    indices = torch.searchsorted(cumulative, target, right=True)[:, 0]
    return indices.clamp_(max=weights.shape[1] - 1)


def _sample_cut(
    logprobs: torch.Tensor, rows: RowSampling, uniforms: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sample from the fewest of the `top_k` most likely tokens that hold `top_p`.

    Top-p (nucleus) as in Holtzman et al. 2019 (arXiv:1904.09751): the token that crosses the
    threshold stays. Of these, min-p (Nguyen et al. 2024, arXiv:2407.01082) keeps those that are at
    least `min_p` times as likely as the likeliest.

    :return: [m] ids, [m, width] the likeliest tokens, and their weights, 0 for those not kept.
    """
    top_p, top_k, min_p, width = rows.top_p, rows.top_k, rows.min_p, rows.cut_width
    assert top_p is not None
    assert top_k is not None
    assert min_p is not None
    ordered, order = logprobs.topk(width, dim=-1)
    weights = ordered.exp()
    rank = torch.arange(width, device=logprobs.device)
    weights = weights.masked_fill(rank >= top_k[:, None], 0.0)
    before = weights.cumsum(-1) - weights
    kept = before < top_p[:, None] * weights.sum(-1, keepdim=True)
    kept &= weights >= min_p[:, None] * weights[:, :1]
    kept[:, 0] = True
    weights = weights.masked_fill(~kept, 0.0)
    last = (weights > 0).sum(-1).clamp_(min=1) - 1
    places = torch.minimum(_invert(weights, uniforms), last)
    ids = order.gather(1, places[:, None])[:, 0]
    return ids, order, weights
