"""The distributions of tokens that were not sampled from the policy itself, as tensors.

See `ajet_core.timeline.SampledFrom`. They are the same to the bit as those that the engine
``torch`` samples from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from ajet_backend_torch.past import to_device
from ajet_core.timeline import SampledFrom, TrainCall, TrainTree

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

_NO_INTS = np.zeros(0, np.int64)
_NO_FLOATS = np.zeros(0, np.float32)


@dataclass(frozen=True, slots=True)
class Restrictions:
    """Changes to the logits [U, vocabulary] of some places before a token is sampled.

    :param kept_places: [M] ascending, the places of which only some tokens are kept.
    :param edges: [M] of them, ascending ids [E] each: where runs of kept tokens begin and end.
    :param added_places: [A] ascending.
    :param added_ids: [A] tokens to whose logits at these places `added` is added.
    :param added: [A] float32.
    """

    kept_places: Ints = field(default_factory=lambda: _NO_INTS)
    edges: Sequence[Ints] = ()
    added_places: Ints = field(default_factory=lambda: _NO_INTS)
    added_ids: Ints = field(default_factory=lambda: _NO_INTS)
    added: Floats = field(default_factory=lambda: _NO_FLOATS)

    def of(self, places: slice) -> Restrictions:
        """Return the part for a range of places, counted from its start."""
        first, last = np.searchsorted(self.kept_places, [places.start, places.stop])
        begin, end = np.searchsorted(self.added_places, [places.start, places.stop])
        return Restrictions(
            self.kept_places[first:last] - places.start,
            self.edges[first:last],
            self.added_places[begin:end] - places.start,
            self.added_ids[begin:end],
            self.added[begin:end],
        )

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """Return changed float32 logits [U, vocabulary]; minus infinity for tokens not kept."""
        device = logits.device
        if len(self.added):
            where = tuple(
                to_device(torch.from_numpy(array), device)
                for array in (self.added_places, self.added_ids)
            )
            added = to_device(torch.from_numpy(self.added), device)
            logits = logits.index_put(where, added, accumulate=True)
        if len(self.kept_places):
            # The sum of the signs of all edges up to a token is 1 within a run and 0 outside.
            counts = [len(edges) for edges in self.edges]
            row = np.repeat(np.arange(len(counts)), counts)
            edge = np.concatenate(self.edges)
            sign = np.concatenate([1 - 2 * (np.arange(count) % 2) for count in counts])
            change = torch.zeros(len(counts), logits.shape[1] + 1, dtype=torch.int8, device=device)
            at = tuple(to_device(torch.from_numpy(array), device) for array in (row, edge))
            change[at] = to_device(torch.from_numpy(sign.astype(np.int8)), device)
            places = to_device(torch.from_numpy(self.kept_places), device)
            hidden = torch.zeros_like(logits, dtype=torch.bool)
            hidden[places] = change[:, :-1].cumsum(1, dtype=torch.int8) == 0
            logits = logits.masked_fill(hidden, -torch.inf)
        return logits


class SampledTokens:
    """The restrictions of the S sampled tokens of a batch, in the order of its calls.

    :param first: as `ajet_backend_torch.packing.CallTokens.first`.
    :ivar restricted: [S] whether a token was sampled from another distribution than the policy.
    """

    def __init__(self, calls: Sequence[TrainCall], trees: Sequence[TrainTree], first: Ints) -> None:
        self.restricted = np.zeros(int(first[-1]), np.bool_)
        self._kept: dict[int, Ints] = {}
        self._added: dict[int, tuple[Ints, Floats]] = {}
        ids = _sampled_ids(calls, trees)
        for number, call in enumerate(calls):
            if call.sampled_from is not None:
                self._add(call.sampled_from, ids[number], int(first[number]))

    def at(self, places: Ints, slots: Ints) -> Restrictions | None:
        """Return the restrictions of tokens that are predicted at places; None without any.

        :param places: [N] place of each token; a restricted token has its place to itself.
        :param slots: [N] index of each token among the S tokens.
        """
        chosen = np.flatnonzero(self.restricted[slots])
        if not chosen.size:
            return None
        chosen = chosen[np.argsort(places[chosen])]
        pairs = [(int(places[at]), int(slots[at])) for at in chosen]
        kept = [(place, self._kept[slot]) for place, slot in pairs if slot in self._kept]
        added = [(place, *self._added[slot]) for place, slot in pairs if slot in self._added]
        return Restrictions(
            np.array([place for place, _ in kept], np.int64),
            [edges for _, edges in kept],
            np.repeat([place for place, *_ in added], [len(ids) for _, ids, _ in added]),
            np.concatenate([_NO_INTS, *(ids for _, ids, _ in added)]),
            np.concatenate([_NO_FLOATS, *(values for *_, values in added)]),
        )

    def _add(self, sampled_from: SampledFrom, ids: Sequence[int], first: int) -> None:
        sets = [np.frombuffer(kept, "<u4").astype(np.int64) for kept in sampled_from.kept]
        frequency, presence = sampled_from.frequency_penalty, sampled_from.presence_penalty
        # In float32 and one by one, as the engine adds them.
        added: dict[int, np.float32] = {}
        for token_id, value in sampled_from.logit_bias:
            added[token_id] = added.get(token_id, np.float32(0)) + np.float32(value)
        seen: set[int] = set()
        for number, (token_id, kept) in enumerate(zip(ids, sampled_from.kept_of, strict=True)):
            slot = first + number
            if kept >= 0:
                self._kept[slot] = sets[kept]
            if added:
                self._added[slot] = (
                    np.array(list(added), np.int64),
                    np.array(list(added.values()), np.float32),
                )
            self.restricted[slot] = kept >= 0 or bool(added)
            if frequency or presence:
                penalty = np.float32(frequency + (0.0 if token_id in seen else presence))
                added[token_id] = added.get(token_id, np.float32(0)) - penalty
                seen.add(token_id)


def _sampled_ids(calls: Sequence[TrainCall], trees: Sequence[TrainTree]) -> dict[int, list[int]]:
    """Return the sampled ids of the calls with restrictions, by index; 0 for one without a span."""
    ids = {
        number: [0] * len(call.logprobs)
        for number, call in enumerate(calls)
        if call.sampled_from is not None
    }
    if not ids:
        return ids
    for tree in trees:
        for segment in tree.segments:
            for span in segment.spans:
                if span.call in ids:
                    part = segment.token_ids[span.offset : span.offset + span.length]
                    ids[span.call][span.start : span.start + span.length] = part
    return ids
