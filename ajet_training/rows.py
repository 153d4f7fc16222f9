"""The sequences of a batch as trainers of padded rows want them: a prompt, and what comes after it.

For trainers that know no trees and compute each sequence from its beginning to its last trained token.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from ajet_core.timeline.batch import TrainBatch, TrainSpan
from ajet_core.timeline.credit import Aggregation, token_weights
from ajet_training.minibatches import deal, dealing_units


@dataclass(frozen=True, slots=True)
class Row:
    """A sequence up to its last trained token. C tokens from the first trained one on are its completion.

    :param prompt: tokens before.
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
        """Tokens that are computed."""
        return len(self.prompt) + len(self.completion)

    @property
    def sampled(self) -> int:
        """Tokens that are trained."""
        return sum(self.mask)


@dataclass(frozen=True, slots=True)
class RowHand:
    """The rows of a minibatch.

    :param every: indices of all of them.
    :param computed: of those with anything to learn from; one at least.
    """

    every: list[int]
    computed: list[int]


def rows_of(batch: TrainBatch) -> list[Row]:
    """The sequences of a valid batch; a tree without spans is none.

    :raises ValueError: as `TrainBatch.sequences`.
    """
    trees = [tree for tree in batch.trees if tree.tokens_trained]
    found = []
    for tree, sequence in zip(trees, replace(batch, trees=trees).sequences, strict=True):
        spans = tree.segments[0].spans
        start = min(span.offset for span in spans)
        kept = slice(start, max(span.offset + span.length for span in spans))
        found.append(
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
    return found


def deal_rows(
    batch: TrainBatch,
    rows: Sequence[Row],
    computed: Collection[int],
    minibatches: int,
    shuffling: random.Random,
) -> list[RowHand]:
    """Deal rows to minibatches as every trainer does (`ajet_training.minibatches`).

    :param computed: indices of the rows with anything to learn from; a minibatch without such rows is left out.
    """
    units = dealing_units(batch.episodes, minibatches)
    sizes = [0] * (max(units) + 1)
    for row in rows:
        sizes[units[row.episode]] += row.sampled
    # Those without rows would leave a hand empty.
    filled = [unit for unit, size in enumerate(sizes) if size]
    hands = deal([sizes[unit] for unit in filled], minibatches, shuffling)
    kept = set(computed)
    found = []
    for hand in hands:
        inside = {filled[place] for place in hand}
        every = [number for number, row in enumerate(rows) if units[row.episode] in inside]
        some = [number for number in every if number in kept]
        if some:
            found.append(RowHand(every, some))
    return found


def call_weights(
    batch: TrainBatch, rows: Sequence[Row], every: Sequence[int], aggregation: Aggregation
) -> dict[int, float]:
    """By call, what the loss of each of its tokens is multiplied by in a minibatch of the rows `every`."""
    calls = sorted({span.call for number in every for span in rows[number].spans})
    weights = token_weights([batch.calls[call] for call in calls], aggregation)
    return dict(zip(calls, weights, strict=True))


def logprobs_by_call(
    batch: TrainBatch, rows: Sequence[Row], known: dict[int, list[float]]
) -> list[list[float]]:
    """As `StepReport.logprobs`.

    :param known: [C] logprobs by row, of those that were computed.
    """
    found: list[list[float | None]] = [[None] * len(call.logprobs) for call in batch.calls]
    for number, values in known.items():
        for span in rows[number].spans:
            found[span.call][span.start : span.start + span.length] = values[
                span.offset : span.offset + span.length
            ]
    return [
        [value for value in call if value is not None] if None not in call else [] for call in found
    ]
