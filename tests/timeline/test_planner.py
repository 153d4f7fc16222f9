"""The planner takes what its cost model makes cheapest."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet_core.timeline.batch import TrainSegment, TrainSpan, TrainTree
from ajet_core.timeline.cost import CostModel
from ajet_training.planner import SIMPLEST_FIRST, choose_plan, schedule_seconds
from ajet_training.schedule import schedule

FREE_PASSES = CostModel(per_pass=0.0, per_token=1e-4, per_pair=0.0)
DEAR_PASSES = CostModel(per_pass=1.0, per_token=1e-6, per_pair=0.0)


def sequence(size: int) -> TrainTree:
    """A sequence that computes `size` tokens."""
    return TrainTree([TrainSegment(-1, [1] * (size + 1), [TrainSpan(size, 0, 0, 1)])])


def fork(trunk: int, *branches: int) -> TrainTree:
    segments = [TrainSegment(-1, [1] * trunk)]
    segments += [TrainSegment(0, [1] * (n + 1), [TrainSpan(n, 0, 0, 1)]) for n in branches]
    return TrainTree(segments)


# Two branches of 10 after 100 tokens: 220 tokens in one pass, or 120 in two.
FORKED = {"linear": [[sequence(110), sequence(110)]], "tree": [[fork(100, 10, 10)]]}


@pytest.mark.parametrize(
    ("costs", "chosen"), [(FREE_PASSES, "tree"), (DEAR_PASSES, "linear"), (None, "tree")]
)
def test_the_cheapest_layout_is_taken(costs, chosen):
    plan = choose_plan(FORKED, costs, None)
    assert plan.chosen == chosen
    assert plan.layouts == [chosen]
    assert plan.trees == FORKED[chosen][0]


def test_the_report_says_what_was_compared():
    costs = choose_plan(FORKED, CostModel(1.0, 0.1, 0.0), None).costs
    assert {name: (c.tokens, c.passes) for name, c in costs.items()} == {
        "linear": (220, 1),
        "tree": (120, 2),
    }
    assert costs["linear"].seconds == pytest.approx(1 + 22)
    assert costs["tree"].seconds == pytest.approx(2 + 12)
    assert choose_plan(FORKED, None, None).costs["tree"].seconds is None


def test_a_second_forward_pass_has_a_price():
    long = schedule([sequence(100)], 50)
    assert schedule_seconds(long, FREE_PASSES) == pytest.approx(1e-4 * (50 * 4 / 3 + 50))


def test_each_group_may_have_its_own_layout():
    # The first group forks late, the second at once, where a tree has another pass and saves
    # nothing.
    costs = CostModel(per_pass=1e-3, per_token=1e-4, per_pair=0.0)
    candidates = {
        "linear": [[sequence(600), sequence(600)], [sequence(301), sequence(301)]],
        "tree": [[fork(590, 10, 10)], [fork(1, 300, 300)]],
    }
    plan = choose_plan(candidates, costs, 100_000)
    assert plan.chosen == "mixed"
    assert plan.layouts == ["tree", "linear"]
    assert plan.trees == [*candidates["tree"][0], *candidates["linear"][1]]


@pytest.mark.parametrize("costs", [FREE_PASSES, None])
def test_the_simpler_layout_wins_a_tie(costs):
    same = {name: [[sequence(10)], [sequence(20)]] for name in reversed(SIMPLEST_FIRST)}
    assert choose_plan(same, costs, None).chosen == "separate"
    del same["separate"]
    assert choose_plan(same, costs, None).chosen == "linear"


def test_calls_that_train_nothing_do_not_count():
    trees = [sequence(110), sequence(110)]
    idle = TrainTree([TrainSegment(-1, [1] * 500, [TrainSpan(499, 1, 0, 1)])])
    plan = choose_plan({"linear": [[*trees, idle]]}, None, None, [True, False])
    assert plan.costs["linear"].tokens == 220


@pytest.mark.parametrize("candidates", [{}, {"linear": [[]], "tree": [[], []]}])
def test_candidates_that_do_not_fit_together_are_refused(candidates):
    with pytest.raises(ValueError, match="same groups"):
        choose_plan(candidates, None, None)


@settings(deadline=None)
@given(
    groups=st.lists(
        st.tuples(st.integers(1, 300), st.lists(st.integers(1, 100), min_size=2, max_size=4)),
        min_size=1,
        max_size=4,
    ),
    per_pass=st.floats(0, 1e-2),
    budget=st.integers(50, 2000),
)
def test_no_uniform_plan_is_predicted_to_be_cheaper(groups, per_pass, budget):
    costs = CostModel(per_pass, 1e-5, 1e-8, 1e-7)
    candidates = {
        "linear": [[sequence(trunk + n) for n in branches] for trunk, branches in groups],
        "tree": [[fork(trunk, *branches)] for trunk, branches in groups],
    }
    plan = choose_plan(candidates, costs, budget)
    taken = schedule_seconds(schedule(plan.trees, budget), costs)
    assert plan.costs[plan.chosen].seconds == pytest.approx(taken)
    for found in candidates.values():
        trees = [tree for group in found for tree in group]
        assert taken <= schedule_seconds(schedule(trees, budget), costs) * (1 + 1e-9)
