"""Divide a batch into micro-batches, and compute the weights of their tokens.

Rows (`ajet_training.rows`) are dealt to minibatches as in every trainer of agentjet. A minibatch is
one optimiser step; TRL computes it in `Plan.accumulation` micro-batches on each process.

TRL's losses weight tokens by the content of a micro-batch. This differs from what the run's
configuration says when rows are left out, micro-batches differ in size, or an episode has several
rows. So every term of a token is multiplied by its wanted weight over its given weight: the
surrogate by its advantage, to which it is proportional, the KL divergence by its coefficient, and
the entropy directly. Then the loss does not depend on the number of micro-batches or processes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from ajet_core.protocol import AlgorithmConfig
from ajet_core.timeline import TrainBatch
from ajet_training.rows import Row, RowHand, call_weights, deal_rows, rows_of

LOSS_OF = {
    "token_mean": "dapo",
    "call_mean": "grpo",
    "episode_mean": "grpo",
    "episode_sum": "dr_grpo",
}
"""The TRL loss that weights tokens as each `AlgorithmConfig.aggregation` does, or nearly."""


LEAST_WIDTH = 2
"""Minimum width of completions: TRL treats a single column as one measurement per row."""


@dataclass(frozen=True, slots=True)
class Objective:
    """The loss that TRL minimises.

    :param loss_type: one of `trl.GRPOConfig`.
    :param follows: whether tokens are weighted by `AlgorithmConfig.aggregation`, or by TRL.
    :param max_completion_length: divisor of ``dr_grpo``.
    :param needs_all: whether rows without advantage are computed, because they have a KL or entropy
        term or because TRL counts them.
    """

    loss_type: str
    follows: bool
    max_completion_length: int
    needs_all: bool

    @classmethod
    def of(
        cls, loss_type: str | None, max_completion_length: int, algorithm: AlgorithmConfig
    ) -> Objective:
        """Make the objective of a run.

        :param loss_type: None selects the loss of the algorithm's aggregation.
        """
        chosen = loss_type or LOSS_OF[algorithm.aggregation]
        return cls(
            loss_type=chosen,
            follows=loss_type is None,
            max_completion_length=max_completion_length,
            needs_all=algorithm.kl_coef > 0 or algorithm.entropy_coef > 0 or chosen == "bnpo",
        )

    @classmethod
    def supervised(cls, *, needs_all: bool) -> Objective:
        """Make the objective of a mean over tokens; advantages only select the trained ones."""
        return cls(loss_type="dapo", follows=False, max_completion_length=1, needs_all=needs_all)

    def weight(self, tokens_of_row: int, rows: int, tokens: int) -> float:
        """Return the factor by which TRL multiplies a token's loss.

        :param tokens_of_row: number of sampled tokens in its row.
        :param rows: number of rows in its micro-batch, times the number of micro-batches.
        :param tokens: number of sampled tokens in the minibatch.
        """
        if self.loss_type in {"dapo", "cispo", "vespo"}:
            return 1.0 / tokens
        if self.loss_type in {"grpo", "sapo"}:
            return 1.0 / (rows * tokens_of_row)
        if self.loss_type == "dr_grpo":
            return 1.0 / (rows * self.max_completion_length)
        if self.loss_type == "luspo":
            return 1.0 / rows
        # bnpo: a mean over the tokens of a micro-batch.
        return 1.0


@dataclass(frozen=True, slots=True)
class Share:
    """A row in a micro-batch.

    :param row: index into `Plan.rows`.
    :param scale: by call, factor of its advantages and its KL divergence.
    :param entropy: by call, factor of its entropies.
    """

    row: int
    scale: dict[int, float]
    entropy: dict[int, float]


@dataclass(frozen=True, slots=True)
class Minibatch:
    """One optimiser step.

    :param tokens: number of sampled tokens, including those of rows that are not computed.
    :param passes: [processes][accumulation] micro-batches; some may be empty.
    :param sizes: [accumulation] number of rows that each process computes, including padding: TRL
        gathers one number for each row.
    """

    tokens: int
    passes: list[list[list[Share]]]
    sizes: list[int]


@dataclass(frozen=True, slots=True)
class Plan:
    """The computation of a batch.

    :param rows: all sequences.
    :param computed: indices of the rows to compute, see `Objective.needs_all`.
    :param minibatches: in order, epoch after epoch.
    :param first: number of minibatches in the first epoch.
    :param accumulation: number of micro-batches of each process in every minibatch, a power of two.
    """

    rows: list[Row]
    computed: list[int]
    minibatches: list[Minibatch] = field(default_factory=list)
    first: int = 0
    accumulation: int = 1

    @property
    def peak_tokens(self) -> int:
        """Number of tokens in the largest micro-batch, padding included."""
        sizes = [
            [self.rows[share.row] for share in part]
            for minibatch in self.minibatches
            for parts in minibatch.passes
            for part in parts
        ]
        return max((padded_tokens(rows) for rows in sizes), default=0)


def padded_tokens(rows: Sequence[Row]) -> int:
    """Return the number of tokens that a micro-batch of `rows` computes, padding included."""
    prompt = max((len(row.prompt) for row in rows), default=1)
    completion = max((len(row.completion) for row in rows), default=1)
    return max(1, len(rows)) * (prompt + max(LEAST_WIDTH, completion))


def make_plan(
    batch: TrainBatch,
    algorithm: AlgorithmConfig,
    objective: Objective,
    *,
    budget: int,
    processes: int,
    seed: str,
) -> Plan:
    """Deal a valid batch.

    :param budget: maximum number of tokens, padding included, in a micro-batch; a single row may
        exceed it.
    :param seed: seed of the order, which is different in each epoch.
    """
    rows = rows_of(batch)
    computed = [
        number
        for number, row in enumerate(rows)
        if objective.needs_all or any(batch.calls[span.call].advantage for span in row.spans)
    ]
    if not computed:
        return Plan(rows, computed)
    dealt: list[RowHand] = []
    first = 0
    for epoch in range(algorithm.epochs):
        shuffling = random.Random(f"{seed}-{epoch}")  # noqa: S311
        dealt += deal_rows(batch, rows, computed, algorithm.minibatches, shuffling)
        first = first or len(dealt)
    accumulation = max(_accumulation(rows, hand.computed, budget, processes) for hand in dealt)
    minibatches = [
        _minibatch(
            batch,
            rows,
            hand,
            algorithm=algorithm,
            objective=objective,
            accumulation=accumulation,
            processes=processes,
        )
        for hand in dealt
    ]
    return Plan(rows, computed, minibatches, first, accumulation)


def _accumulation(rows: Sequence[Row], some: Sequence[int], budget: int, processes: int) -> int:
    """Return the number of micro-batches that each process needs for the rows `some`."""
    widest = padded_tokens([_widest(rows, some)])
    share = -(-len(some) // processes)
    needed = -(-share // max(1, budget // widest))
    # TRL's loop restarts when this changes. With few possible values, it seldom does.
    return 1 << (needed - 1).bit_length()


def _widest(rows: Sequence[Row], some: Sequence[int]) -> Row:
    """Return a row of the maximum width of a micro-batch of `some`."""
    prompt = max((rows[number].prompt for number in some), key=len)
    completion = max((rows[number].completion for number in some), key=len)
    return replace(rows[some[0]], prompt=prompt, completion=completion)


def _minibatch(
    batch: TrainBatch,
    rows: Sequence[Row],
    hand: RowHand,
    *,
    algorithm: AlgorithmConfig,
    objective: Objective,
    accumulation: int,
    processes: int,
) -> Minibatch:
    tokens = sum(rows[number].sampled for number in hand.every)
    wanted = _wanted(
        batch, rows, hand.every, algorithm=algorithm, objective=objective, tokens=tokens
    )
    # Rows of similar length share a micro-batch, and neighbours are spread over the processes.
    order = sorted(hand.computed, key=lambda number: rows[number].tokens, reverse=True)
    count = accumulation * processes
    parts = _even_parts(order, count)
    sizes = [
        max(1, *(len(part) for part in parts[start : start + processes]))
        for start in range(0, count, processes)
    ]
    passes: list[list[list[Share]]] = [[] for _ in range(processes)]
    for place, part in enumerate(parts):
        shares = []
        # TRL's entropy bonus is the mean entropy of a micro-batch, with every loss.
        entropy_given = 1.0 / max(1, count * sum(rows[number].sampled for number in part))
        for number in part:
            size = sizes[place // processes]
            given = objective.weight(rows[number].sampled, size * count, tokens)
            calls = [span.call for span in rows[number].spans]
            weights = {call: wanted[number, call] for call in calls}
            entropy = weights if objective.follows else dict.fromkeys(calls, 1.0 / tokens)
            shares.append(
                Share(
                    number,
                    {call: weight / given for call, weight in weights.items()},
                    {call: weight / entropy_given for call, weight in entropy.items()},
                )
            )
        passes[place % processes].append(shares)
    return Minibatch(tokens, passes, sizes)


def _even_parts(order: Sequence[int], count: int) -> list[list[int]]:
    """Split `order` into `count` runs whose lengths differ by at most one."""
    bounds = [len(order) * place // count for place in range(count + 1)]
    return [list(order[low:high]) for low, high in pairwise(bounds)]


def _wanted(
    batch: TrainBatch,
    rows: Sequence[Row],
    every: Sequence[int],
    *,
    algorithm: AlgorithmConfig,
    objective: Objective,
    tokens: int,
) -> dict[tuple[int, int], float]:
    """Return the wanted factor of the loss of each token, by row and call."""
    pairs = sorted({(number, span.call) for number in every for span in rows[number].spans})
    if not objective.follows:
        return {
            (number, call): objective.weight(rows[number].sampled, len(every), tokens)
            for number, call in pairs
        }
    by_call = call_weights(batch, rows, every, algorithm.aggregation)
    return {(number, call): by_call[call] for number, call in pairs}
