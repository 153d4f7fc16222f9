"""The sequences of a batch for trainers of padded rows: a prompt and a completion each.

For trainers that do not support trees and compute each sequence up to its last trained token.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from ajet_core.timeline.batch import TrainBatch, TrainSpan
from ajet_core.timeline.credit import Aggregation, token_weights
from ajet_training.minibatches import deal, dealing_units

__all__ = ["Row", "RowHand", "call_weights", "deal_rows", "logprobs_by_call", "rows_of"]


@dataclass(frozen=True, slots=True)
class Row:
    """A sequence up to its last trained token.

    The C tokens from the first trained one on are its completion.

    :param prompt: tokens before the completion.
    :param completion: [C].
    :param mask: [C] True where the token was sampled and is trained.
    :param behaviour: [C] logprobs it was sampled with.
    :param advantages: [C].
    :param temperatures: [C].
    :param versions: [C] version of the weights that sampled it.
    :param spans: the trained tokens call by call, with offsets in the completion.
    """

    prompt: list[int]
    completion: list[int]
    mask: list[bool]
    behaviour: list[float]
    advantages: list[float]
    temperatures: list[float]
    versions: list[int]
    spans: list[TrainSpan]
    episode: int

    @property
    def tokens(self) -> int:
        """The number of computed tokens."""
        return len(self.prompt) + len(self.completion)

    @property
    def sampled(self) -> int:
        """The number of trained tokens."""
        return sum(self.mask)


@dataclass(frozen=True, slots=True)
class RowHand:
    """The rows of a minibatch.

    :param every: indices of all rows.
    :param computed: indices of rows with anything to learn from; at least one.
    """

    every: list[int]
    computed: list[int]


def rows_of(batch: TrainBatch) -> list[Row]:
    """Return the sequences of a valid batch, without trees that have no spans.

    :raises ValueError: as for `TrainBatch.sequences`.
    """
    trees = [tree for tree in batch.trees if tree.tokens_trained]
    rows = []
    for tree, sequence in zip(trees, replace(batch, trees=trees).sequences, strict=True):
        spans = tree.segments[0].spans
        start = min(span.offset for span in spans)
        kept = slice(start, max(span.offset + span.length for span in spans))
        rows.append(
            Row(
                prompt=sequence.token_ids[:start],
                completion=sequence.token_ids[kept],
                mask=sequence.loss_mask[kept],
                behaviour=sequence.behaviour_logprobs[kept],
                advantages=sequence.advantages[kept],
                temperatures=sequence.temperatures[kept],
                versions=sequence.policy_versions[kept],
                spans=[TrainSpan(s.offset - start, s.call, s.start, s.length) for s in spans],
                episode=sequence.episode,
            )
        )
    return rows


def deal_rows(
    batch: TrainBatch,
    rows: Sequence[Row],
    computed: Collection[int],
    minibatches: int,
    shuffling: random.Random,
) -> list[RowHand]:
    """Deal rows to minibatches as all trainers do (`ajet_training.minibatches`).

    :param computed: indices of the rows with anything to learn from; minibatches without such rows
        are omitted.
    """
    units = dealing_units(batch.episodes, minibatches)
    sizes = [0] * (max(units) + 1)
    for row in rows:
        sizes[units[row.episode]] += row.sampled
    # Units without rows would leave a hand empty.
    filled = [unit for unit, size in enumerate(sizes) if size]
    hands = deal([sizes[unit] for unit in filled], minibatches, shuffling)
    kept = set(computed)
    dealt = []
    for hand in hands:
        inside = {filled[place] for place in hand}
        every = [number for number, row in enumerate(rows) if units[row.episode] in inside]
        some = [number for number in every if number in kept]
        if some:
            dealt.append(RowHand(every, some))
    return dealt


def call_weights(
    batch: TrainBatch, rows: Sequence[Row], every: Sequence[int], aggregation: Aggregation
) -> dict[int, float]:
    """Return the loss weight of tokens by call, for a minibatch of the rows `every`."""
    calls = sorted({span.call for number in every for span in rows[number].spans})
    weights = token_weights([batch.calls[call] for call in calls], aggregation)
    return dict(zip(calls, weights, strict=True))


def logprobs_by_call(
    batch: TrainBatch, rows: Sequence[Row], known: dict[int, list[float]]
) -> list[list[float]]:
    """Collect logprobs by call, as in `StepReport.logprobs`.

    :param known: [C] logprobs by row, for the computed rows.
    """
    logprobs: list[list[float | None]] = [[None] * len(call.logprobs) for call in batch.calls]
    for number, values in known.items():
        for span in rows[number].spans:
            logprobs[span.call][span.start : span.start + span.length] = values[
                span.offset : span.offset + span.length
            ]
    return [
        [value for value in call if value is not None] if None not in call else []
        for call in logprobs
    ]
