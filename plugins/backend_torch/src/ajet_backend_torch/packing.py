"""Convert a training batch to the tensors of its passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from ajet_backend_torch.past import to_device
from ajet_backend_torch.restrictions import Restrictions, SampledTokens
from ajet_core.timeline import TrainCall, TrainTree
from ajet_training.schedule import Pass, PassRow

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class CallTokens:
    """Properties of the S sampled tokens of a batch, in the order of the calls.

    :param first: [calls + 1] index of each call's first token.
    :param behaviour: [S] logprob under the distribution that it was sampled from.
    :param temperature: [S] sampling temperature.
    :param advantage: [S] advantage of the token's call.
    :param versions: [S] policy version that sampled the token.
    :param sampled: what the tokens were sampled from.
    """

    first: Ints
    behaviour: Floats
    temperature: Floats
    advantage: Floats
    versions: Ints
    sampled: SampledTokens

    @classmethod
    def of(cls, calls: Sequence[TrainCall], trees: Sequence[TrainTree]) -> CallTokens:
        sizes = np.array([len(call.logprobs) for call in calls], np.int64)
        first = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        return cls(
            first=first,
            behaviour=np.array([v for call in calls for v in call.behaviour], np.float32),
            temperature=np.repeat(np.array([c.temperature for c in calls], np.float32), sizes),
            advantage=np.repeat(np.array([c.advantage for c in calls], np.float32), sizes),
            versions=np.array([v for call in calls for v in call.policy_versions], np.int64),
            sampled=SampledTokens(calls, trees, first),
        )

    def per_token(self, values: Sequence[float]) -> Floats:
        """Return [S] values from one value for each call."""
        return np.repeat(np.array(values, np.float32), np.diff(self.first))


@dataclass(frozen=True, slots=True)
class Targets:
    """N trained tokens that a segment's positions predict: its own, and its children's first.

    :param places: [N] offset in the segment of the position that predicts the token.
    :param ids: [N] the token.
    :param slots: [N] index of the token in `CallTokens`.
    """

    places: Ints
    ids: Ints
    slots: Ints


@dataclass(frozen=True, slots=True)
class PackedTree:
    """A tree as arrays: for each segment, its tokens and the targets of its positions."""

    ids: list[Ints]
    targets: list[Targets]

    @classmethod
    def of(cls, tree: TrainTree, first: Ints, trains: Sequence[bool]) -> PackedTree:
        """Convert a tree.

        :param first: as `CallTokens.first`.
        :param trains: for each call of the batch, whether it trains a token.
        """
        ids = [np.array(segment.token_ids, np.int64) for segment in tree.segments]
        parts: list[list[Targets]] = [[] for _ in ids]
        for number, segment in enumerate(tree.segments):
            for span in segment.spans:
                if not trains[span.call]:
                    continue
                slot = int(first[span.call]) + span.start
                offsets = np.arange(span.offset, span.offset + span.length)
                targets = Targets(offsets - 1, ids[number][offsets], slot + np.arange(span.length))
                if span.offset == 0:
                    last = len(ids[segment.parent]) - 1
                    parts[segment.parent].append(
                        Targets(np.array([last]), targets.ids[:1], targets.slots[:1])
                    )
                    targets = Targets(targets.places[1:], targets.ids[1:], targets.slots[1:])
                if len(targets.places):
                    parts[number].append(targets)
        return cls(ids, [_concatenated(part) for part in parts])

    def of_row(self, row: PassRow) -> tuple[Ints, Targets]:
        """Return the tokens of a row and its targets, at offsets from its start."""
        targets = self.targets[row.segment]
        ids = self.ids[row.segment][row.start : row.start + row.length]
        if row.start or row.length < len(self.ids[row.segment]):
            places = targets.places - row.start
            inside = (places >= 0) & (places < row.length)
            targets = Targets(places[inside], targets.ids[inside], targets.slots[inside])
        return ids, targets


@dataclass(frozen=True, slots=True)
class PassTensors:
    """A pass of R rows of L tokens that predicts N trained tokens from U places, on the device.

    :param ids: [R, L] int64.
    :param positions: [R, L] int64.
    :param places: [U] int64, indices into the flat [R * L] positions.
    :param of_place: [N] int64 indices into `places`; None if they are 0, 1, ... N - 1.
    :param place_temperature: [U] float32.
    :param targets: [N] int64.
    :param versions: [N] int64.
    :param behaviour: [N] float32.
    :param advantage: [N] float32.
    :param weight: [N] float32, the token's share of the loss.
    :param slots: [N] int64, indices of the tokens in `CallTokens`.
    :param restrictions: of the places; None if all tokens were sampled from the policy.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    places: torch.Tensor
    of_place: torch.Tensor | None
    place_temperature: torch.Tensor
    targets: torch.Tensor
    versions: torch.Tensor
    behaviour: torch.Tensor
    advantage: torch.Tensor
    weight: torch.Tensor
    slots: torch.Tensor
    restrictions: Restrictions | None


def pack(
    part: Pass,
    trees: Sequence[PackedTree],
    tokens: CallTokens,
    weights: Floats,
    device: torch.device,
) -> PassTensors:
    """Make the tensors of a pass.

    :param weights: [S] share of each sampled token in the loss.
    """
    shape = part.shape
    ids = np.zeros((shape.rows, shape.width), np.int64)
    targets_of_rows = []
    for number, row in enumerate(part.rows):
        ids[number, : row.length], targets = trees[row.tree].of_row(row)
        targets_of_rows.append(
            Targets(targets.places + number * shape.width, targets.ids, targets.slots)
        )
    every = _concatenated(targets_of_rows)
    temperature = tokens.temperature[every.slots]
    alone = np.where(tokens.sampled.restricted[every.slots], every.slots, -1)
    places, of_place, place_temperature = _distinct(every.places, temperature, alone)
    restrictions = tokens.sampled.at(
        of_place if len(of_place) else np.arange(len(every.slots)), every.slots
    )
    past = np.array([row.past for row in part.rows], np.int64)
    versions = tokens.versions[every.slots]
    ints = [ids.reshape(-1), past, places, every.ids, versions, of_place, every.slots]
    floats = [
        place_temperature,
        tokens.behaviour[every.slots],
        tokens.advantage[every.slots],
        weights[every.slots],
    ]
    moved = _moved(ints, device)
    moved_floats = _moved(floats, device)
    columns = torch.arange(shape.width, device=device)
    return PassTensors(
        ids=moved[0].view(shape.rows, shape.width),
        positions=moved[1][:, None] + columns,
        places=moved[2],
        of_place=moved[5] if len(of_place) else None,
        place_temperature=moved_floats[0],
        targets=moved[3],
        versions=moved[4],
        behaviour=moved_floats[1],
        advantage=moved_floats[2],
        weight=moved_floats[3],
        slots=moved[6],
        restrictions=restrictions,
    )


def _distinct(places: Ints, temperature: Floats, alone: Ints) -> tuple[Ints, Ints, Floats]:
    """Return the distinct places, the index of each given place among them, and temperatures.

    Calls that share a context predict from the same place. The second result is empty if no place
    repeats.

    :param alone: [N] a number of its own for each token that shares its place with no other, -1 for
        other tokens.
    """
    if len(np.unique(places)) == len(places):
        return places, np.zeros(0, np.int64), temperature
    keys = np.stack([places, temperature.view(np.int32), alone])
    unique, inverse = np.unique(keys, axis=1, return_inverse=True)
    return (
        np.ascontiguousarray(unique[0]),
        inverse.reshape(-1).astype(np.int64),
        unique[1].astype(np.int32).view(np.float32),
    )


def _concatenated(parts: Sequence[Targets]) -> Targets:
    if len(parts) == 1:
        return parts[0]
    if not parts:
        empty = np.zeros(0, np.int64)
        return Targets(empty, empty, empty)
    return Targets(
        np.concatenate([part.places for part in parts]),
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.slots for part in parts]),
    )


def _moved(
    arrays: Sequence[Ints] | Sequence[Floats], device: torch.device
) -> tuple[torch.Tensor, ...]:
    """Move several arrays of one dtype in a single transfer."""
    whole = to_device(torch.from_numpy(np.concatenate(cast("Sequence[Ints]", arrays))), device)
    return torch.split(whole, [len(array) for array in arrays])
