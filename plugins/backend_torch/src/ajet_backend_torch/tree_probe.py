"""Check on small trees whether a model continues exactly from its own keys and values."""

from __future__ import annotations

import logging

import numpy as np
import torch
from torch import nn

from ajet_backend_torch.forest import Forest
from ajet_backend_torch.losses import TokenScores
from ajet_backend_torch.packing import CallTokens, PackedTree, PassTensors, pack
from ajet_core.timeline import TrainCall, TrainSegment, TrainSpan, TrainTree
from ajet_training.schedule import schedule

_log = logging.getLogger(__name__)

BUDGET = 64
SMALL_TREES = (
    # (parent, tokens) of each segment: siblings of different lengths, parents of different lengths.
    ((-1, 6), (0, 4), (0, 3), (1, 2), (1, 5)),
    ((-1, 9), (0, 4), (0, 2), (2, 3), (2, 3)),
    # Several short branches share a row, see `past.folding`.
    ((-1, 70), (0, 3), (0, 1), (0, 3), (0, 4)),
)
FEW = 2**16
"""Gradients of parameters up to this size are compared: each layer's depend on all layers above."""
EXACT = {torch.float32: 1e-3}
ROUGH = 0.1


def trees_are_exact(
    module: nn.Module, forest: Forest, vocab_size: int, dtype: torch.dtype, device: torch.device
) -> bool:
    """Return whether a tree has the logprobs and gradients of its separately computed paths.

    This fails or gives other values for models with state outside the cache, or with a special
    cache.
    """
    trees, paths, calls = _problem(vocab_size)
    trainable = [p for p in module.parameters() if p.requires_grad]
    compared = [p for p in trainable if p.numel() <= FEW] or trainable[:1]
    chosen = {id(p) for p in compared}
    for parameter in trainable:
        parameter.requires_grad_(id(parameter) in chosen)
    try:
        plain = _run(forest, paths, calls, compared, device, divide=False)
        tree = _run(forest, trees, calls, compared, device, divide=True)
    except torch.OutOfMemoryError:
        # Running out of memory is not a property of the model.
        raise
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError, KeyError) as error:
        _log.warning("%s is trained on linear sequences: %s", type(module).__name__, error)
        return False
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)
            parameter.grad = None
    tolerance = EXACT.get(dtype, ROUGH)
    exact = all(
        bool((a - b).norm() <= tolerance * (b.norm() + tolerance))
        for a, b in zip(tree, plain, strict=True)
    )
    if not exact:
        _log.warning(
            "%s is trained on linear sequences: its logprobs or gradients would differ in a tree",
            type(module).__name__,
        )
    return exact


def _run(
    forest: Forest,
    trees: list[TrainTree],
    calls: list[TrainCall],
    compared: list[nn.Parameter],
    device: torch.device,
    *,
    divide: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logprobs of all trained tokens, and all gradients as one vector."""
    tokens = CallTokens.of(calls, trees)
    everything = [True] * len(calls)
    weights = tokens.per_token([1.0] * len(calls))
    plan = schedule(trees, BUDGET, divide=divide)
    packed = [PackedTree.of(tree, tokens.first, everything) for tree in trees]
    logprobs = torch.zeros(len(weights), device=device)

    def note(_: int, tensors: PassTensors, scores: TokenScores) -> torch.Tensor:
        logprobs[tensors.slots] = scores.logprobs.detach()
        return scores.logprobs.sum()

    for subtree in plan.subtrees:
        tensors = {i: pack(plan.passes[i], packed, tokens, weights, device) for i in subtree}
        forest.train(plan.passes, subtree, tensors, note)
    gradients = [
        (torch.zeros_like(p) if p.grad is None else p.grad).float().flatten() for p in compared
    ]
    for parameter in compared:
        parameter.grad = None
    return logprobs, torch.cat(gradients)


def _problem(vocab_size: int) -> tuple[list[TrainTree], list[TrainTree], list[TrainCall]]:
    """Return trees with a separate call for every segment, and the same calls as paths."""
    generator = np.random.Generator(np.random.PCG64(0))
    trees: list[TrainTree] = []
    paths: list[TrainTree] = []
    calls: list[TrainCall] = []
    for shape in SMALL_TREES:
        segments: list[TrainSegment] = []
        contexts: list[list[int]] = []
        for number, (parent, size) in enumerate(shape):
            ids = generator.integers(0, vocab_size, size).tolist()
            skipped = 1 if parent < 0 else 0
            span = TrainSpan(skipped, len(calls), 0, size - skipped)
            segments.append(TrainSegment(parent, ids, [span]))
            context = contexts[parent] if parent >= 0 else []
            contexts.append(context + ids)
            moved = TrainSpan(len(context) + skipped, len(calls), 0, span.length)
            paths.append(TrainTree([TrainSegment(-1, contexts[number], [moved])]))
            calls.append(
                TrainCall(str(len(calls)), 0, 1.0, 1.0, [0.0] * span.length, [0] * span.length)
            )
        trees.append(TrainTree(segments))
    return trees, paths, calls
