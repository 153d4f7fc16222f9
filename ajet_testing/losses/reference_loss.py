"""The reference loss of a trainer, computed with autograd, one sequence at a time."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ajet_core.protocol.run import AlgorithmConfig
from ajet_core.timeline import TrainBatch, TrainCall, TrainSpan

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class ReferenceLoss:
    """Reference values at the start of a step.

    :ivar loss: loss of the whole batch.
    :ivar grad_norm: norm of its gradient over all parameters.
    :ivar logprobs: [calls], each [T] of the call's tokens at its temperature.
    """

    loss: float
    grad_norm: float
    logprobs: list[list[float]]


def reference_loss(
    directory: Path, batch: TrainBatch, algorithm: AlgorithmConfig, old: ReferenceLoss | None = None
) -> ReferenceLoss:
    """Compute the surrogate loss of `AlgorithmConfig` for linear sequences.

    KL divergence and entropy are not included.

    :param directory: directory of a model, which is computed in float32.
    :param old: values of the weights before the step; None if these are the same weights.
    """
    import torch

    module = _loaded(directory)
    logprobs = _call_logprobs(module, batch)
    before = [row.detach() for row in logprobs]
    if old is not None:
        before = [torch.tensor(row) for row in old.logprobs]
    terms = []
    for call, policy, fixed in zip(batch.calls, logprobs, before, strict=True):
        behaviour = torch.tensor(call.behaviour)
        truncated = algorithm.importance == "truncated"
        ratio = (policy - (fixed if truncated else behaviour)).exp()
        bounded = ratio.clamp(1 - algorithm.clip_low, 1 + algorithm.clip_high)
        surrogate = torch.minimum(ratio * call.advantage, bounded * call.advantage)
        if truncated:
            surrogate = surrogate * (fixed - behaviour).exp().clamp(max=algorithm.importance_cap)
        terms.append(-surrogate)
    loss = AGGREGATED[algorithm.aggregation](terms, [call.episode for call in batch.calls])
    loss.backward()  # type: ignore[no-untyped-call]
    squares = sum(float(p.grad.square().sum()) for p in module.parameters() if p.grad is not None)
    return ReferenceLoss(loss.item(), squares**0.5, [row.tolist() for row in logprobs])


def reference_logprobs(directory: Path) -> Callable[[list[int], float], list[float]]:
    """Create an `ajet_testing.losses.batches.Scorer` of a model directory."""
    import torch

    module = _loaded(directory)

    def score(ids: list[int], temperature: float) -> list[float]:
        with torch.no_grad():
            rows = _logprobs(module, ids, temperature)
        logprobs: list[float] = rows.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
        return logprobs

    return score


def _loaded(directory: Path) -> torch.nn.Module:
    import torch
    from transformers import AutoModelForCausalLM

    module: torch.nn.Module = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    return module.eval()


def _logprobs(
    module: torch.nn.Module, ids: list[int], temperature: float, changes: torch.Tensor | None = None
) -> torch.Tensor:
    """Return [len(ids) - 1, vocabulary]; `changes` of the same shape are added to the logits."""
    import torch

    logits = module(torch.tensor([ids]), use_cache=False).logits[0, :-1].float()
    if changes is not None:
        logits = logits + changes
    return torch.log_softmax(logits / temperature, -1)


def _changes(call: TrainCall, ids: list[int], span: TrainSpan, size: int) -> torch.Tensor | None:
    """Return what `TrainCall.sampled_from` does to the logits before each token of `ids`."""
    import torch

    if (sampled_from := call.sampled_from) is None:
        return None
    changes = torch.zeros(len(ids) - 1, size)
    for number in range(span.length):
        row = changes[span.offset + number - 1]
        for token_id, added in sampled_from.logit_bias:
            row[token_id] += added
        before = ids[span.offset : span.offset + number]
        for token_id in set(before):
            row[token_id] -= sampled_from.frequency_penalty * before.count(token_id)
            row[token_id] -= sampled_from.presence_penalty
        kept = sampled_from.kept_of[span.start + number]
        if kept >= 0:
            edges = struct.unpack(f"<{len(sampled_from.kept[kept]) // 4}I", sampled_from.kept[kept])
            hidden = torch.ones(size, dtype=torch.bool)
            for first, stop in zip(edges[::2], edges[1::2], strict=True):
                hidden[first:stop] = False
            row[hidden] = -torch.inf
    return changes


def _call_logprobs(module: torch.nn.Module, batch: TrainBatch) -> list[torch.Tensor]:
    """Return [calls], each [T] logprobs; the spans of a call in order."""
    import torch

    parts: list[list[torch.Tensor]] = [[] for _ in batch.calls]
    for tree in batch.trees:
        (segment,) = tree.segments
        for span in segment.spans:
            call, ids_of_path = batch.calls[span.call], segment.token_ids
            size = cast("Any", module).config.vocab_size
            changes = _changes(call, ids_of_path, span, size)
            rows = _logprobs(module, ids_of_path, call.temperature, changes)
            places = range(span.offset, span.offset + span.length)
            ids = torch.tensor([segment.token_ids[place] for place in places])
            chosen = rows[[place - 1 for place in places]].gather(1, ids[:, None])[:, 0]
            parts[span.call].append(chosen)
    return [torch.cat(part) for part in parts]


def _token_mean(terms: list[torch.Tensor], _: list[int]) -> torch.Tensor:
    import torch

    return torch.cat(terms).mean()


def _call_mean(terms: list[torch.Tensor], _: list[int]) -> torch.Tensor:
    import torch

    return torch.stack([term.mean() for term in terms]).mean()


def _of_episodes(terms: list[torch.Tensor], episodes: list[int]) -> list[torch.Tensor]:
    import torch

    return [
        torch.cat([term for term, of in zip(terms, episodes, strict=True) if of == episode])
        for episode in sorted(set(episodes))
    ]


def _episode_mean(terms: list[torch.Tensor], episodes: list[int]) -> torch.Tensor:
    return _call_mean(_of_episodes(terms, episodes), episodes)


def _episode_sum(terms: list[torch.Tensor], episodes: list[int]) -> torch.Tensor:
    import torch

    return torch.stack([term.sum() for term in _of_episodes(terms, episodes)]).mean()


AGGREGATED = {
    "token_mean": _token_mean,
    "call_mean": _call_mean,
    "episode_mean": _episode_mean,
    "episode_sum": _episode_sum,
}
