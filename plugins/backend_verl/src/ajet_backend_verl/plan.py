"""Divide a batch into minibatches and workers' shares, and compute the weights of tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ajet_backend_verl.settings import VerlTrainerSettings
from ajet_core.protocol import AlgorithmConfig
from ajet_core.timeline import TrainBatch
from ajet_training.rows import Row, call_weights, deal_rows, rows_of

OF_ALL_ROWS = frozenset({"clip_cov", "kl_cov", "dro"})
"""Losses to which rows without advantage contribute."""


@dataclass(frozen=True, slots=True)
class Minibatch:
    """One optimiser step.

    :param rows: indices of the rows to compute.
    :param tokens: number of sampled tokens, including those of rows that are not computed.
    :param count: number of rows, counted in the same way.
    :param weights: by call, factor of its tokens' losses; None uses verl's aggregation.
    """

    rows: list[int]
    tokens: int
    count: int
    weights: dict[int, float] | None


@dataclass(frozen=True, slots=True)
class Plan:
    """The computation of a batch.

    :param rows: all sequences.
    :param computed: indices of the rows to compute, which are those that train something.
    :param minibatches: in order, epoch after epoch.
    :param first: number of minibatches in the first epoch.
    """

    rows: list[Row]
    computed: list[int]
    minibatches: list[Minibatch] = field(default_factory=list)
    first: int = 0

    @property
    def longest(self) -> int:
        """Number of tokens in the longest computed row."""
        return max(self.rows[number].tokens for number in self.computed)


def separated(rows: Sequence[Row]) -> list[Row]:
    """Split rows so that each has one temperature, because verl has one for a row.

    A row whose calls have several temperatures is computed once for each, with the other calls as
    context.
    """
    separate: list[Row] = []
    for row in rows:
        by_temperature: dict[float, Row] = {}
        for temperature in dict.fromkeys(row.temperatures[span.offset] for span in row.spans):
            inside = [
                of_row and t == temperature
                for of_row, t in zip(row.mask, row.temperatures, strict=True)
            ]
            spans = [s for s in row.spans if row.temperatures[s.offset] == temperature]
            by_temperature[temperature] = replace(row, mask=inside, spans=spans)
        separate += by_temperature.values()
    return separate


def rows_to_train(batch: TrainBatch) -> list[Row]:
    """Return the rows of a valid batch."""
    return separated(rows_of(batch))


def needs_all_rows(algorithm: AlgorithmConfig, options: VerlTrainerSettings) -> bool:
    """Return whether rows without advantage contribute to the loss or the correction."""
    terms = algorithm.kl_coef > 0 or algorithm.entropy_coef > 0
    return terms or options.loss_mode in OF_ALL_ROWS or bool(options.correction)


def make_plan(
    batch: TrainBatch,
    rows: Sequence[Row],
    algorithm: AlgorithmConfig,
    options: VerlTrainerSettings,
    *,
    seed: str,
) -> Plan:
    """Deal the rows of a batch.

    :param rows: with the advantages to train.
    :param seed: seed of the order, which is different in each epoch.
    """
    every = needs_all_rows(algorithm, options)
    computed = [n for n, row in enumerate(rows) if every or _has_advantage(row)]
    if not computed:
        return Plan(list(rows), computed)
    minibatches: list[Minibatch] = []
    first = 0
    for epoch in range(algorithm.epochs):
        shuffling = random.Random(f"{seed}-{epoch}")  # noqa: S311
        for hand in deal_rows(batch, rows, computed, algorithm.minibatches, shuffling):
            weights = None
            # A mean over tokens is verl's own, and works with any loss.
            if algorithm.aggregation != "token_mean":
                weights = call_weights(batch, rows, hand.every, algorithm.aggregation)
            tokens = sum(rows[number].sampled for number in hand.every)
            minibatches.append(Minibatch(hand.computed, tokens, len(hand.every), weights))
        first = first or len(minibatches)
    return Plan(list(rows), computed, minibatches, first)


def shares(rows: Sequence[Row], numbers: Sequence[int], workers: int) -> list[list[int | None]]:
    """Divide rows evenly among workers; None is padding.

    Rows of similar length go to different workers, so that all have about the same work.
    """
    falling = sorted(numbers, key=lambda number: rows[number].tokens, reverse=True)
    order: list[int | None] = [*falling, *[None] * (-len(falling) % workers)]
    return [order[worker::workers] for worker in range(workers)]


def _has_advantage(row: Row) -> bool:
    return any(a != 0 for a, trained in zip(row.advantages, row.mask, strict=True) if trained)
