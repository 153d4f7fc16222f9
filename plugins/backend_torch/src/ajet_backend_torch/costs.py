"""How long passes of this model take on this machine."""

from __future__ import annotations

import time
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ajet_backend_torch.forest import Forest
from ajet_backend_torch.packing import CallTokens, PackedTree, PassTensors, pack
from ajet_core.timeline.batch import TrainCall, TrainSegment, TrainSpan, TrainTree
from ajet_core.timeline.cost import CostModel, PassShape
from ajet_torch.models import vocabulary_size
from ajet_training.schedule import Block, Pass, Row

TIME_LIMIT = 0.6
"""Seconds that measuring may take, as far as the smallest passes allow."""
REPETITIONS = 2
SLOW = 10
"""A model that needs this many times as long is measured with fewer passes."""
WIDTHS = 20
"""Widths of tokens that are computed for all shapes and repetitions together."""
LEAST_WIDTH = 16
MOST_WIDTH = 1024
PAIRS_SHOW = 128
"""From this width on attention is measured; below it takes too small a part of the time."""

CPU_FLOPS, CUDA_FLOPS = 3e10, 1.5e14
CPU_BYTES, CUDA_BYTES = 5e9, 1e12
CPU_LAYER, CUDA_LAYER = 4e-4, 2e-4


def assumed_costs(module: nn.Module, device: torch.device) -> CostModel:
    """Costs without a measurement.

    A token costs 6 floating-point operations for each parameter, a pair 12 for each layer and hidden size, a gathered
    token the bytes of its keys and values, read and written in both directions; a pass costs the time to start its
    operations. Speeds are those of a common machine: only the ratios matter to a plan.
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
    """Time forward and backward passes of several shapes and fit the terms to them.

    The shapes grow with the speed of the model, so that a small one takes less than a second and a large one a few
    passes. Terms that these cannot show are in proportion to those of `assumed_costs`.

    :param most: tokens of a pass and of a sequence.
    :param trees: whether passes with a past can be run.
    """
    least = min(LEAST_WIDTH, max(1, most // 2))
    timer = _Timer(forest, vocabulary_size(module), device)
    first = timer.best(PassShape(1, least))
    width, seconds = least, first
    # Wide enough that tokens take half of the time, and then as wide as there is time for.
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
    """The non-negative terms with the least relative error."""
    sizes = np.array([[1, s.tokens, s.pairs, s.gathered] for s in shapes], np.float64)
    if not pairs:
        # A pair costs what it does compared with a token.
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
    """The x >= 0 with the least ``|matrix x - 1|``: the best of the solutions on every subset of columns."""
    count = matrix.shape[1]
    usable = [column for column in range(count) if matrix[:, column].any()]
    best, least = np.zeros(count), np.inf
    for size in range(1, len(usable) + 1):
        for columns in combinations(usable, size):
            found = np.linalg.lstsq(matrix[:, columns], np.ones(len(matrix)), rcond=None)[0]
            error = float(np.square(matrix[:, columns] @ found - 1).sum())
            if (found >= 0).all() and error < least:
                best, least = np.zeros(count), error
                best[list(columns)] = found
    return best


class _Timer:
    """Times single passes, as the trainer runs them."""

    def __init__(self, forest: Forest, vocab_size: int, device: torch.device) -> None:
        self._forest = forest
        self._vocab_size = vocab_size
        self._device = device
        self.repetitions = REPETITIONS

    def best(self, shape: PassShape) -> float:
        """The shortest of some times: the first of a shape often makes kernels for it."""
        return min(self.seconds(shape) for _ in range(self.repetitions))

    def seconds(self, shape: PassShape) -> float:
        """Seconds of forward and backward pass; that of the tokens of its past is not counted."""
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
        """The pass, after one whose rows it goes on from."""
        size = shape.past + shape.width
        ids = [(7 * i) % self._vocab_size for i in range(size)]
        rows = shape.rows
        # As in a conversation, about half of the new tokens are trained.
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
        tokens = CallTokens.of(calls)
        weights = tokens.per_token([1.0] * rows)
        trees = [TrainTree([*heads, *tails])] if heads else [TrainTree([tail]) for tail in tails]
        packed = [PackedTree.of(tree, tokens.first, [True] * rows) for tree in trees]
        passes = []
        if heads:
            passes.append(
                Pass(
                    [Row(0, 0, 0, shape.past, -1, 0)],
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
                    Row(0, i + 1, 0, shape.width, 0, shape.past)
                    if heads
                    else Row(i, 0, 0, shape.width, -1, 0)
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
    """Layers, hidden size, and numbers that keys take in a layer."""
    config = module.config

    def number(name: str, default: int) -> int:
        found = getattr(config, name, None)
        return found if isinstance(found, int) else default

    hidden = number("hidden_size", 1024)
    heads = number("num_attention_heads", 1)
    kv = number("num_key_value_heads", heads) * number("head_dim", hidden // heads)
    return number("num_hidden_layers", 1), hidden, kv
