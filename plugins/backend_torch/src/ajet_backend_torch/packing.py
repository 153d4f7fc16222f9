"""From a training batch to minibatches and padded micro-batches."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ajet_core.timeline import TrainSequence

PADDED_ENOUGH = 1024
"""A micro-batch of this many tokens is closed rather than padded by more than `MAX_PADDING`."""
MAX_PADDING = 0.25


@dataclass(frozen=True, slots=True)
class TrainRow:
    """A sequence with the advantage of its episode."""

    sequence: TrainSequence
    advantage: float

    @property
    def trained(self) -> int:
        """Tokens with a loss. The first token of a sequence has no context and cannot have one."""
        return sum(self.sequence.loss_mask[1:])

    @property
    def size(self) -> int:
        """Tokens."""
        return len(self.sequence.token_ids)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """R rows padded on the right to T tokens, with N tokens to train.

    Padding needs no attention mask: no real token comes after it.

    :param ids: [R, T] int64.
    :param places: [N] int64, index into the flat [R * T] positions whose logits predict the tokens.
    :param targets: [N] int64, the tokens.
    :param behaviour: [N] float32 behaviour logprobs.
    :param temperature: [N] float32.
    :param advantage: [N] float32.
    :param weight: [N] float32, share of the token in the minibatch's loss.
    :param versions: [N] int64 policy version that sampled it.
    :param tokens: tokens without padding.
    """

    ids: torch.Tensor
    places: torch.Tensor
    targets: torch.Tensor
    behaviour: torch.Tensor
    temperature: torch.Tensor
    advantage: torch.Tensor
    weight: torch.Tensor
    versions: torch.Tensor
    tokens: int


def minibatches(rows: Sequence[TrainRow], count: int, rng: random.Random) -> list[list[TrainRow]]:
    """Divide rows into `count` minibatches (fewer, if there are fewer rows) of similar size.

    Rows of similar length are dealt to different minibatches, at random by `rng`.
    """
    count = min(count, len(rows))
    shuffled = list(rows)
    rng.shuffle(shuffled)
    shuffled.sort(key=lambda row: row.size, reverse=True)
    found: list[list[TrainRow]] = [[] for _ in range(count)]
    for start in range(0, len(shuffled), count):
        hands = list(range(count))
        rng.shuffle(hands)
        for hand, row in zip(hands, shuffled[start : start + count], strict=False):
            found[hand].append(row)
    return [hand for hand in found if hand]


def token_weights(rows: Sequence[TrainRow], aggregation: str) -> list[float]:
    """The weight of each row's tokens, so that a weighted sum over all tokens is the aggregation.

    ``token_mean`` 1 / tokens, ``sequence_mean`` 1 / (sequences x tokens of the sequence),
    ``sequence_sum`` 1 / sequences; tokens and sequences count those of this minibatch that are trained.
    """
    if aggregation == "token_mean":
        return [1.0 / sum(row.trained for row in rows)] * len(rows)
    if aggregation == "sequence_mean":
        return [1.0 / (len(rows) * row.trained) for row in rows]
    return [1.0 / len(rows)] * len(rows)


def micro_batches(
    rows: Sequence[TrainRow],
    aggregation: str,
    token_budget: int,
    device: torch.device,
    computed: Callable[[TrainRow], bool] = lambda _: True,
) -> list[MicroBatch]:
    """Split a minibatch by length into passes of at most `token_budget` tokens, padding included.

    Rows that are not `computed` are in no pass, but the weights of the others allow for them.

    The weighted losses of the passes add up to the loss of the minibatch. A sequence longer than the
    budget has a pass of its own, since a sequence cannot be divided.
    """
    weights = token_weights(rows, aggregation)
    weighted = [item for item in zip(rows, weights, strict=True) if computed(item[0])]
    by_length = sorted(weighted, key=lambda item: item[0].size)
    groups: list[list[tuple[TrainRow, float]]] = []
    real = 0
    for item in by_length:
        size = item[0].size
        if groups:
            padded = size * (len(groups[-1]) + 1)
            wasteful = padded * (1 - MAX_PADDING) > real + size and real >= PADDED_ENOUGH
            if padded <= token_budget and not wasteful:
                groups[-1].append(item)
                real += size
                continue
        groups.append([item])
        real = size
    return [_collate(group, device) for group in groups]


def _collate(group: Sequence[tuple[TrainRow, float]], device: torch.device) -> MicroBatch:
    width = max(row.size for row, _ in group)
    shape = (len(group), width)
    ids = np.zeros(shape, np.int64)
    mask = np.zeros(shape, np.bool_)
    floats = np.zeros((2, *shape), np.float32)
    versions = np.zeros(shape, np.int64)
    per_row = np.zeros((2, *shape), np.float32)
    for index, (row, weight) in enumerate(group):
        sequence, size = row.sequence, row.size
        ids[index, :size] = sequence.token_ids
        mask[index, :size] = sequence.loss_mask
        floats[0, index, :size] = sequence.behaviour_logprobs
        floats[1, index, :size] = sequence.temperatures
        versions[index, :size] = sequence.policy_versions
        per_row[:, index] = np.array([[row.advantage], [weight]], np.float32)
    mask[:, 0] = False
    where = np.flatnonzero(mask)

    def pick(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> torch.Tensor:
        return torch.from_numpy(array.reshape(-1)[where]).to(device)

    return MicroBatch(
        ids=torch.from_numpy(ids).to(device),
        places=torch.from_numpy(where - 1).to(device),
        targets=pick(ids),
        behaviour=pick(floats[0]),
        temperature=pick(floats[1]),
        advantage=pick(per_row[0]),
        weight=pick(per_row[1]),
        versions=pick(versions),
        tokens=sum(row.size for row, _ in group),
    )
