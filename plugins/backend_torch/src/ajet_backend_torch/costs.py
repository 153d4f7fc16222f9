"""Estimate how long passes of this model take on this machine."""

from __future__ import annotations

import time
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ajet_backend_torch.forest import Forest
from ajet_backend_torch.packing import CallTokens, PackedTree, PassTensors, pack
from ajet_core.timeline import CostModel, PassShape, TrainCall, TrainSegment, TrainSpan, TrainTree
from ajet_torch.models import vocabulary_size
from ajet_training.schedule import Block, Pass, PassRow

TIME_LIMIT = 0.6
"""Target for the seconds that measuring takes; the smallest passes may need more."""
REPETITIONS = 2
SLOW = 10
"""A model that takes more than this many times the limit is measured with fewer passes."""
WIDTHS = 20
"""The total work of all shapes and repetitions, in passes of the full width."""
LEAST_WIDTH = 16
MOST_WIDTH = 1024
PAIRS_SHOW = 128
"""Attention is measured from this width on; below, it takes too little of the time."""

CPU_FLOPS, CUDA_FLOPS = 3e10, 1.5e14
CPU_BYTES, CUDA_BYTES = 5e9, 1e12
CPU_LAYER, CUDA_LAYER = 4e-4, 2e-4


def assumed_costs(module: nn.Module, device: torch.device) -> CostModel:
    """Return costs from the model's sizes, without measuring.

    A token costs 6 floating-point operations for each parameter. A pair costs 12 for each layer and
    hidden unit. A gathered token costs the bytes of its keys and values, read and written in both
    directions. A pass costs the time to launch its operations. The speeds are those of a common
    machine: a plan depends only on their ratios.
    """
    layers, hidden, kv = _sizes(module)
    cuda = device.type == "cuda"
    flops, rate = (CUDA_FLOPS, CUDA_BYTES) if cuda else (CPU_FLOPS, CPU_BYTES)
    parameter = next(module.parameters())
    return CostModel(
        per_pass=layers * (CUDA_LAYER if cuda else CPU_LAYER),
        per_token=6 * sum(p.numel() for p in module.parameters()) / flops,
        per_pair=12 * layers * hidden / flops,
        per_gathered=4 * 2 * layers * kv * parameter.element_size() / rate,
    )


def measured_costs(
    forest: Forest, module: nn.Module, most: int, device: torch.device, *, trees: bool
) -> CostModel:
    """Time forward and backward passes of several shapes, and fit the costs to them.

    The shapes depend on the model's speed: a small model takes less than a second, a large one only
    a few passes. Costs that these shapes cannot determine are scaled from `assumed_costs`.

    :param most: maximum number of tokens in a pass and in a sequence.
    :param trees: whether passes with a past can be computed.
    """
    least = min(LEAST_WIDTH, max(1, most // 2))
    timer = _Timer(forest, vocabulary_size(module), device)
    first = timer.best(PassShape(1, least))
    width, seconds = least, first
    # Widen until tokens take half of the time, then as far as the time limit allows.
    while width * 2 <= min(MOST_WIDTH, most // 2) and (
        seconds < 2 * first or 2 * seconds * WIDTHS < TIME_LIMIT
    ):
        width *= 2
        seconds = timer.best(PassShape(1, width))
    narrow = max(1, width // 8)
    slow = seconds * WIDTHS > SLOW * TIME_LIMIT
    shapes = [PassShape(1, narrow), PassShape(1, width), PassShape(8, narrow)]
    if trees:
        shapes.append(PassShape(8, narrow, width))
    if trees and not slow:
        shapes += [PassShape(1, narrow, width), PassShape(1, width, width)]
    if width >= PAIRS_SHOW and not slow:
        shapes.append(PassShape(1, 2 * width))
    timer.repetitions = 1 if slow else REPETITIONS
    times = [timer.best(shape) for shape in shapes]
    return _fitted(
        shapes, times, assumed_costs(module, device), pairs=width >= PAIRS_SHOW and not slow
    )


def _fitted(
    shapes: list[PassShape], times: list[float], assumed: CostModel, *, pairs: bool
) -> CostModel:
    """Return the non-negative costs with the least relative error."""
    sizes = np.array([[1, s.tokens, s.pairs, s.gathered] for s in shapes], np.float64)
    if not pairs:
        # Assume the ratio of the costs of a pair and a token.
        sizes[:, 1] += sizes[:, 2] * assumed.per_pair / assumed.per_token
        sizes[:, 2] = 0
    terms = _least_squares(sizes / np.array(times)[:, None])
    per_token = float(terms[1])
    return CostModel(
        per_pass=float(terms[0]),
        per_token=per_token,
        per_pair=float(terms[2]) if pairs else per_token * assumed.per_pair / assumed.per_token,
        per_gathered=float(terms[3]),
    )


def _least_squares(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the x >= 0 with the least ``|matrix x - 1|``, trying every subset of columns."""
    count = matrix.shape[1]
    usable = [column for column in range(count) if matrix[:, column].any()]
    best, least = np.zeros(count), np.inf
    for size in range(1, len(usable) + 1):
        for columns in combinations(usable, size):
            solution = np.linalg.lstsq(matrix[:, columns], np.ones(len(matrix)), rcond=None)[0]
            error = float(np.square(matrix[:, columns] @ solution - 1).sum())
            if (solution >= 0).all() and error < least:
                best, least = np.zeros(count), error
                best[list(columns)] = solution
    return best


class _Timer:
    """Time single passes in the way the trainer computes them."""

    def __init__(self, forest: Forest, vocab_size: int, device: torch.device) -> None:
        self._forest = forest
        self._vocab_size = vocab_size
        self._device = device
        self.repetitions = REPETITIONS

    def best(self, shape: PassShape) -> float:
        """Return the shortest of several times: the first pass often compiles kernels."""
        return min(self.seconds(shape) for _ in range(self.repetitions))

    def seconds(self, shape: PassShape) -> float:
        """Return the seconds of a forward and a backward pass, without computing its past."""
        passes, tensors = self._made(shape)
        started = [0.0]

        def now() -> float:
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            return time.perf_counter()

        def done(index: int) -> None:
            if index == len(passes) - 1:
                started.append(now())

        def begin(index: int) -> None:
            if index == len(passes) - 1:
                started[0] = now()

        self._forest.train(
            passes,
            range(len(passes)),
            tensors,
            lambda _, __, scores: scores.logprobs.sum(),
            done=done,
            begin=begin,
        )
        return started[1] - started[0]

    def _made(self, shape: PassShape) -> tuple[list[Pass], dict[int, PassTensors]]:
        """Return the pass, preceded by the pass that computes its past, if any."""
        size = shape.past + shape.width
        ids = [(7 * i) % self._vocab_size for i in range(size)]
        rows = shape.rows
        # In a conversation, about half of the new tokens are trained.
        trained = max(1, shape.width // 2)
        calls = [
            TrainCall(str(i), 0, 1.0, 1.0, [0.0] * trained, [0] * trained) for i in range(rows)
        ]
        parent = -1 if not shape.past else 0
        heads = [TrainSegment(-1, ids[: shape.past])] if shape.past else []
        tails = [
            TrainSegment(
                parent, ids[shape.past :], [TrainSpan(shape.width - trained, i, 0, trained)]
            )
            for i in range(rows)
        ]
        trees = [TrainTree([*heads, *tails])] if heads else [TrainTree([tail]) for tail in tails]
        tokens = CallTokens.of(calls, trees)
        weights = tokens.per_token([1.0] * rows)
        packed = [PackedTree.of(tree, tokens.first, [True] * rows) for tree in trees]
        passes = []
        if heads:
            passes.append(
                Pass(
                    [PassRow(0, 0, 0, shape.past, -1, 0)],
                    -1,
                    (),
                    PassShape(1, shape.past),
                    inner=True,
                    keeps=True,
                )
            )
        passes.append(
            Pass(
                [
                    PassRow(0, i + 1, 0, shape.width, 0, shape.past)
                    if heads
                    else PassRow(i, 0, 0, shape.width, -1, 0)
                    for i in range(rows)
                ],
                len(passes) - 1,
                (Block(0, (0,), shape.past),) if heads else (),
                shape,
                inner=False,
                keeps=True,
            )
        )
        return passes, {
            index: pack(part, packed, tokens, weights, self._device)
            for index, part in enumerate(passes)
        }


def _sizes(module: nn.Module) -> tuple[int, int, int]:
    """Return the number of layers, the hidden size, and the size of a token's keys in one layer."""
    config = module.config

    def number(name: str, default: int) -> int:
        value = getattr(config, name, None)
        return value if isinstance(value, int) else default

    hidden = number("hidden_size", 1024)
    heads = number("num_attention_heads", 1)
    kv = number("num_key_value_heads", heads) * number("head_dim", hidden // heads)
    return number("num_hidden_layers", 1), hidden, kv
