"""From a batch to micro-batches: which rows are computed together, and what their tokens weigh.

Rows (`ajet_training.rows`) are dealt to minibatches as every trainer of agentjet deals them. A minibatch is one
optimiser step; TRL computes it in `Plan.accumulation` micro-batches on each process.

TRL's losses weigh tokens by what is in a micro-batch. That is not what the run asks for as soon as rows are left out,
micro-batches differ in size, or an episode has several rows; so every term of a token is multiplied by wanted over given
weight: the surrogate by its advantage, to which it is proportional, the KL divergence by its coefficient, and the entropy
itself. So the loss does not depend on how many micro-batches or processes there are.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from ajet_core.protocol.run import AlgorithmConfig
from ajet_core.timeline import TrainBatch
from ajet_training.rows import Row, RowHand, call_weights, deal_rows, rows_of

LOSS_OF = {
    "token_mean": "dapo",
    "call_mean": "grpo",
    "episode_mean": "grpo",
    "episode_sum": "dr_grpo",
}
"""The loss of TRL that weighs tokens as an `AlgorithmConfig.aggregation` does, or nearly."""


LEAST_WIDTH = 2
"""Of completions: what TRL measures it takes for a number of the whole row, padding or not, if there is one column."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What TRL minimises.

    :param loss_type: one of `trl.GRPOConfig`.
    :param follows: whether tokens weigh as `AlgorithmConfig.aggregation` says, or as TRL weighs them.
    :param max_completion_length: what ``dr_grpo`` divides by.
    :param needs_all: whether rows without advantage are computed: they have a KL or entropy term, or TRL counts
        them.
    """

    loss_type: str
    follows: bool
    max_completion_length: int
    needs_all: bool

    @classmethod
    def of(
        cls, loss_type: str | None, max_completion_length: int, algorithm: AlgorithmConfig
    ) -> Objective:
        """:param loss_type: None takes the one of the algorithm's aggregation."""
        chosen = loss_type or LOSS_OF[algorithm.aggregation]
        return cls(
            loss_type=chosen,
            follows=loss_type is None,
            max_completion_length=max_completion_length,
            needs_all=algorithm.kl_coef > 0 or algorithm.entropy_coef > 0 or chosen == "bnpo",
        )

    @classmethod
    def supervised(cls, *, needs_all: bool) -> Objective:
        """A mean over tokens, of which advantages say at most which are trained."""
        return cls(loss_type="dapo", follows=False, max_completion_length=1, needs_all=needs_all)

    def weight(self, tokens_of_row: int, rows: int, tokens: int) -> float:
        """What TRL multiplies a token's loss by.

        :param tokens_of_row: sampled tokens of its row.
        :param rows: that its micro-batch would have if the minibatch had micro-batches of this size only.
        :param tokens: of the minibatch.
        """
        if self.loss_type in {"dapo", "cispo", "vespo"}:
            return 1.0 / tokens
        if self.loss_type in {"grpo", "sapo"}:
            return 1.0 / (rows * tokens_of_row)
        if self.loss_type == "dr_grpo":
            return 1.0 / (rows * self.max_completion_length)
        if self.loss_type == "luspo":
            return 1.0 / rows
        # bnpo: a mean over the tokens of a micro-batch, whatever they are.
        return 1.0


@dataclass(frozen=True, slots=True)
class Share:
    """A row in a micro-batch.

    :param row: index into `Plan.rows`.
    :param scale: by call, what its advantages and its KL divergence are multiplied by.
    :param entropy: by call, what its entropies are multiplied by.
    """

    row: int
    scale: dict[int, float]
    entropy: dict[int, float]


@dataclass(frozen=True, slots=True)
class Minibatch:
    """One optimiser step.

    :param tokens: sampled tokens, also those of rows that are not computed.
    :param passes: [processes][accumulation] micro-batches; one may be empty.
    :param sizes: [accumulation] rows that all processes compute there, some of them padding: TRL gathers a number for
        each row.
    """

    tokens: int
    passes: list[list[list[Share]]]
    sizes: list[int]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is computed of a batch.

    :param rows: all sequences.
    :param computed: indices of those with anything to learn from.
    :param minibatches: in order, epoch after epoch.
    :param first: how many of them are the first epoch.
    :param accumulation: micro-batches of each process in every minibatch, a power of two.
    """

    rows: list[Row]
    computed: list[int]
    minibatches: list[Minibatch] = field(default_factory=list)
    first: int = 0
    accumulation: int = 1

    @property
    def peak_tokens(self) -> int:
        """Tokens of the largest micro-batch, padding included."""
        sizes = [
            [self.rows[share.row] for share in part]
            for minibatch in self.minibatches
            for parts in minibatch.passes
            for part in parts
        ]
        return max((padded_tokens(rows) for rows in sizes), default=0)


def padded_tokens(rows: Sequence[Row]) -> int:
    """What a micro-batch of `rows` computes."""
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

    :param budget: most tokens, padding included, of a micro-batch; one row is computed whatever it takes.
    :param seed: of the order; each epoch is dealt anew.
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
    """How many micro-batches each process needs for the rows `some`."""
    widest = padded_tokens([_widest(rows, some)])
    share = -(-len(some) // processes)
    needed = -(-share // max(1, budget // widest))
    # TRL's loop begins anew when this changes: rarely, if it has few values.
    return 1 << (needed - 1).bit_length()


def _widest(rows: Sequence[Row], some: Sequence[int]) -> Row:
    """A row as wide as a micro-batch of `some` may become."""
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
    # Rows of like length share a micro-batch, and neighbours are spread over the processes.
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
        # TRL's bonus is the mean entropy of a micro-batch, whatever the loss.
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
    """`order` in `count` runs whose lengths differ by one at most."""
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
    """By row and call, what the loss of each of its tokens is to be multiplied by."""
    pairs = sorted({(number, span.call) for number in every for span in rows[number].spans})
    if not objective.follows:
        return {
            (number, call): objective.weight(rows[number].sampled, len(every), tokens)
            for number, call in pairs
        }
    by_call = call_weights(batch, rows, every, algorithm.aggregation)
    return {(number, call): by_call[call] for number, call in pairs}
