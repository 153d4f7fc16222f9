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


@dataclass(frozen=True, slots=True)
class Added:
    """Values that are added to the logits of D tokens at P places.

    :param places: [P] ascending.
    :param ids: [D] distinct tokens.
    :param values: [P, D] float32.
    """

    places: Ints
    ids: Ints
    values: Floats


@dataclass(frozen=True, slots=True)
class Restrictions:
    """Changes to the logits [U, vocabulary] of some places before a token is sampled.

    :param kept_places: [M] ascending, the places of which only some tokens are kept.
    :param edges: [M] of them, ascending ids [E] each: where runs of kept tokens begin and end.
    :param added: of each call with penalties or a bias.
    """

    kept_places: Ints = field(default_factory=lambda: _NO_INTS)
    edges: Sequence[Ints] = ()
    added: Sequence[Added] = ()

    def of(self, places: slice) -> Restrictions:
        """Return the part for a range of places, counted from its start."""
        first, last = np.searchsorted(self.kept_places, [places.start, places.stop])
        added = []
        for one in self.added:
            begin, end = np.searchsorted(one.places, [places.start, places.stop])
            if begin < end:
                own = one.places[begin:end] - places.start
                added.append(Added(own, one.ids, one.values[begin:end]))
        return Restrictions(
            self.kept_places[first:last] - places.start, self.edges[first:last], added
        )

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """Return changed float32 logits [U, vocabulary]; minus infinity for tokens not kept."""
        device = logits.device
        for one in self.added:
            places, ids, values = (
                to_device(torch.from_numpy(array), device)
                for array in (one.places, one.ids, one.values)
            )
            logits = logits.index_put((places[:, None], ids[None]), values, accumulate=True)
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
        self._first = first
        self._sets: dict[int, list[Ints]] = {}
        self._kept_of: dict[int, Ints] = {}
        self._penalties: dict[int, _Penalties] = {}
        ids = _sampled_ids(calls, trees)
        for number, call in enumerate(calls):
            if call.sampled_from is not None:
                self._add(number, call.sampled_from, ids[number])

    def at(self, places: Ints, slots: Ints) -> Restrictions | None:
        """Return the restrictions of tokens that are predicted at places; None without any.

        :param places: [N] place of each token; a restricted token has its place to itself.
        :param slots: [N] index of each token among the S tokens.
        """
        chosen = np.flatnonzero(self.restricted[slots])
        if not chosen.size:
            return None
        chosen = chosen[np.argsort(places[chosen])]
        own_places, own_slots = places[chosen], slots[chosen]
        calls = np.searchsorted(self._first, own_slots, side="right") - 1
        tokens = own_slots - self._first[calls]
        kept: list[tuple[int, Ints]] = []
        for place, call, token in zip(
            own_places.tolist(), calls.tolist(), tokens.tolist(), strict=True
        ):
            number = int(self._kept_of[call][token])
            if number >= 0:
                kept.append((place, self._sets[call][number]))
        added = []
        for call in dict.fromkeys(calls.tolist()):
            if (penalties := self._penalties.get(call)) is not None:
                same = calls == call
                added.append(Added(own_places[same], penalties.ids, penalties.before(tokens[same])))
        return Restrictions(
            np.array([place for place, _ in kept], np.int64), [edges for _, edges in kept], added
        )

    def _add(self, call: int, sampled_from: SampledFrom, ids: Sequence[int]) -> None:
        first = int(self._first[call])
        kept_of = np.array(sampled_from.kept_of, np.int64)
        self._sets[call] = [np.frombuffer(k, "<u4").astype(np.int64) for k in sampled_from.kept]
        self._kept_of[call] = kept_of
        restricted = kept_of >= 0
        penalties = _Penalties(sampled_from, ids)
        if penalties.ids.size:
            self._penalties[call] = penalties
            # Without a bias, penalties begin with the second token.
            restricted[0 if sampled_from.logit_bias else 1 :] = True
        self.restricted[first : first + len(kept_of)] = restricted


class _Penalties:
    """What is added to the logits of a call's tokens, computed for the tokens that are needed.

    :ivar ids: [D] the tokens whose logits are changed anywhere.
    """

    def __init__(self, sampled_from: SampledFrom, sampled: Sequence[int]) -> None:
        frequency, presence = sampled_from.frequency_penalty, sampled_from.presence_penalty
        counted = np.array(sampled if frequency or presence else [], np.int64)
        bias: dict[int, np.float32] = {}
        for token_id, value in sampled_from.logit_bias:
            bias[token_id] = bias.get(token_id, np.float32(0)) + np.float32(value)
        self.ids = np.unique(np.concatenate([counted, np.array(list(bias), np.int64)]))
        self._columns = np.searchsorted(self.ids, counted)
        most = int(np.bincount(self._columns).max(initial=0)) if counted.size else 0
        # [count, D]: the sum after so many occurrences, in float32 and one by one, as the engine
        # adds them.
        table = np.zeros((most + 1, len(self.ids)), np.float32)
        table[0] = [bias.get(token_id, 0.0) for token_id in self.ids.tolist()]
        for number in range(most):
            penalty = np.float32(frequency + (0.0 if number else presence))
            table[number + 1] = table[number] - penalty
        self._table = table

    def before(self, tokens: Ints) -> Floats:
        """Return [P, D] the sums before the tokens at these positions of the call."""
        counts = np.zeros((len(tokens), len(self.ids)), np.int64)
        order = np.argsort(tokens)
        running = np.zeros(len(self.ids), np.int64)
        position = 0
        for place in order.tolist():
            end = min(int(tokens[place]), len(self._columns))
            running += np.bincount(self._columns[position:end], minlength=len(self.ids))
            counts[place] = running
            position = max(position, end)
        return self._table[counts, np.arange(len(self.ids))]


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
