"""Choice of the layout of a batch that its trainer computes fastest.

The layouts of a batch train the same tokens but differ in how often context is computed, and in the
number of passes (`ajet_core.timeline.layouts`). Each is scheduled as by the trainer, and the cost
of its passes is estimated from the trainer's measurements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ajet_core.timeline.batch import TrainTree
from ajet_core.timeline.cost import CostModel
from ajet_training.schedule import Schedule, schedule

SIMPLEST_FIRST = ("separate", "linear", "tree", "group_tree")
MIXED = "mixed"
DEFAULT_BUDGET = 16384
"""For trainers that do not report how many tokens they compute at once."""
RECOMPUTED = 1 / 3
"""Cost of a second forward pass, as a fraction of a forward and backward pass."""
WORTH_MIXING = 0.98
"""A mixture is chosen if its predicted time is at most this fraction of the best uniform plan's."""


@dataclass(frozen=True, slots=True)
class PlanCost:
    """The cost of a plan.

    :param tokens: computed tokens, without padding.
    :param passes: number of forward and backward passes.
    :param seconds: predicted duration; None without a cost model.
    """

    tokens: int
    passes: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class LayoutPlan:
    """The chosen plan, and the compared costs.

    :param chosen: name of the layout of all groups, or ``mixed``.
    :param layouts: [groups] layout of each group.
    :param trees: the trees for the trainer.
    :param costs: costs of all compared plans, by name.
    """

    chosen: str
    layouts: list[str]
    trees: list[TrainTree]
    costs: dict[str, PlanCost]


def schedule_seconds(passes: Schedule, costs: CostModel) -> float:
    """Return the predicted seconds of a schedule, forward and backward."""
    return sum(
        costs.seconds(part.shape) * (1.0 if part.keeps else 1.0 + RECOMPUTED)
        for part in passes.passes
    )


def choose_plan(
    candidates: Mapping[str, Sequence[Sequence[TrainTree]]],
    costs: CostModel | None,
    token_budget: int | None,
    trains: Sequence[bool] | None = None,
    *,
    divide: bool = True,
) -> LayoutPlan:
    """Choose the cheapest plan: one layout for all groups, or one for each group.

    Without costs, choose the plan that computes the fewest tokens; the simpler layout wins a tie.

    :param candidates: the trees of each group, by layout (one of `SIMPLEST_FIRST`).
    :param token_budget: the trainer's budget; None uses `DEFAULT_BUDGET`.
    :param trains: whether each call of the batch trains anything, as the trainer will decide; None
        if all do.
    :param divide: whether the trainer divides long segments; trainers without trees do not.
    :raises ValueError: there are no candidates, or they have different numbers of groups.
    """
    names = sorted(candidates, key=SIMPLEST_FIRST.index)
    if not names or len({len(candidates[name]) for name in names}) != 1:
        raise ValueError("a plan needs candidates that cover the same groups")
    budget = token_budget or DEFAULT_BUDGET

    def price(trees: Sequence[TrainTree]) -> PlanCost:
        passes = schedule(trees, budget, trains, divide=divide)
        seconds = None if costs is None else schedule_seconds(passes, costs)
        return PlanCost(passes.tokens, len(passes.passes), seconds)

    prices = {name: price(_flat(candidates[name])) for name in names}
    chosen = min(names, key=lambda name: _key(prices[name]))
    layouts = [chosen] * len(candidates[chosen])
    mixture = [
        min(names, key=lambda name: _key(price(candidates[name][group])))
        for group in range(len(layouts))
    ]
    if len(set(mixture)) > 1:
        trees = [tree for group, name in enumerate(mixture) for tree in candidates[name][group]]
        prices[MIXED] = price(trees)
        share = 1.0 if costs is None else WORTH_MIXING
        if _key(prices[MIXED]) < _key(prices[chosen]) * share:
            return LayoutPlan(MIXED, mixture, trees, prices)
    return LayoutPlan(chosen, layouts, _flat(candidates[chosen]), prices)


def _flat(groups: Sequence[Sequence[TrainTree]]) -> list[TrainTree]:
    return [tree for group in groups for tree in group]


def _key(price: PlanCost) -> float:
    return float(price.tokens) if price.seconds is None else price.seconds
