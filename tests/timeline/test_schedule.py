"""Schedules of random trees: everything once, in order, within the budget."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet_core.timeline.batch import TrainEpisode, TrainSegment, TrainSpan, TrainTree
from ajet_core.timeline.cost import PassShape
from ajet_training.minibatches import deal, dealing_units
from ajet_training.schedule import (
    MAX_PADDING,
    PADDED_ENOUGH,
    Schedule,
    schedule,
)


def tree(*segments: tuple[int, int]) -> TrainTree:
    """From parent and length of each segment; all tokens but the first of the root are trained."""
    return TrainTree(
        [
            TrainSegment(
                parent, [1] * length, [TrainSpan(0 if i else 1, 0, 0, length if i else length - 1)]
            )
            for i, (parent, length) in enumerate(segments)
        ]
    )


def shapes(found: Schedule) -> list[tuple[int, int, int]]:
    return [(p.shape.rows, p.shape.width, p.shape.past) for p in found.passes]


@st.composite
def forests(draw: st.DrawFn) -> list[TrainTree]:
    trees = []
    for _ in range(draw(st.integers(1, 4))):
        count = draw(st.integers(1, 8))
        segments = []
        for i in range(count):
            length = draw(st.integers(2, 30))
            spans = []
            for call in range(3):
                if draw(st.booleans()):
                    offset = (
                        draw(st.integers(1, length - 1))
                        if i == 0
                        else draw(st.integers(0, length - 1))
                    )
                    spans.append(TrainSpan(offset, call, 0, draw(st.integers(1, length - offset))))
            parent = -1 if i == 0 else draw(st.integers(0, i - 1))
            segments.append(TrainSegment(parent, [1] * length, spans))
        trees.append(TrainTree(segments))
    return trees


TRAINS = st.none() | st.lists(st.booleans(), min_size=3, max_size=3)


def needed_positions(
    trees: list[TrainTree], trains: list[bool] | None
) -> set[tuple[int, int, int]]:
    """(tree, segment, offset) of every token in the context of a trained token."""
    found = set()
    for number, each in enumerate(trees):
        for index, segment in enumerate(each.segments):
            ends = [s.offset + s.length for s in segment.spans if trains is None or trains[s.call]]
            if not ends:
                continue
            found |= {(number, index, offset) for offset in range(max(ends) - 1)}
            up = segment.parent
            while up >= 0:
                size = len(each.segments[up].token_ids)
                found |= {(number, up, offset) for offset in range(size)}
                up = each.segments[up].parent
    return found


@settings(deadline=None)
@given(trees=forests(), budget=st.integers(1, 80), trains=TRAINS)
def test_what_is_needed_is_computed_once_and_nothing_else(trees, budget, trains):
    found = schedule(trees, budget, trains)
    computed = [
        (row.tree, row.segment, row.start + i)
        for part in found.passes
        for row in part.rows
        for i in range(row.length)
    ]
    assert len(computed) == len(set(computed)) == found.tokens
    assert set(computed) == needed_positions(trees, trains)


@settings(deadline=None)
@given(trees=forests(), budget=st.integers(1, 80))
def test_every_row_goes_on_where_its_parent_row_ended(trees, budget):
    found = schedule(trees, budget)
    for number, part in enumerate(found.passes):
        assert part.parent < number
        assert part.inner == any(other.parent == number for other in found.passes)
        for row in part.rows:
            if part.parent < 0:
                assert (row.parent, row.segment, row.start, row.past) == (-1, 0, 0, 0)
                continue
            above = found.passes[part.parent].rows[row.parent]
            assert above.tree == row.tree
            assert row.past == above.past + above.length
            if row.start:
                assert (above.segment, above.start + above.length) == (row.segment, row.start)
            else:
                segments = trees[row.tree].segments
                assert segments[row.segment].parent == above.segment
                size = len(segments[above.segment].token_ids)
                assert above.start + above.length == size


@settings(deadline=None)
@given(trees=forests(), budget=st.integers(1, 80))
def test_blocks_are_the_whole_past_of_every_row(trees, budget):
    found = schedule(trees, budget)
    for part in found.passes:
        for place, row in enumerate(part.rows):
            lengths: list[int] = []
            for block in part.blocks:
                source = found.passes[block.source].rows[
                    block.rows[place if len(block.rows) > 1 else 0]
                ]
                assert source.tree == row.tree
                assert source.past == sum(lengths)
                assert source.length <= block.width
                lengths.append(source.length)
            assert sum(lengths) == row.past
            assert part.shape.past >= row.past


@settings(deadline=None)
@given(trees=forests(), budget=st.integers(1, 80), trains=TRAINS)
def test_live_tokens_keep_to_the_budget(trees, budget, trains):
    assert schedule(trees, budget, trains).peak_tokens <= budget


@settings(deadline=None)
@given(trees=forests(), budget=st.integers(1, 80))
def test_subtrees_are_what_is_below_each_root(trees, budget):
    found = schedule(trees, budget)
    assert [i for subtree in found.subtrees for i in subtree] == list(range(len(found.passes)))
    for subtree in found.subtrees:
        assert found.passes[subtree[0]].parent == -1
        assert all(found.passes[i].parent in subtree for i in subtree[1:])


def test_peak_tokens_by_hand():
    # 60 and 30 below it do not fit into 80, so that the upper pass is dropped and alone the larger.
    assert schedule([tree((-1, 60), (0, 31))], 80).peak_tokens == 60
    assert schedule([tree((-1, 60), (0, 31))], 90).peak_tokens == 90


def test_without_room_a_graph_is_dropped_and_computed_again():
    tight, roomy = (schedule([tree((-1, 60), (0, 31))], budget) for budget in (80, 90))
    assert [part.keeps for part in tight.passes] == [False, True]
    assert [part.keeps for part in roomy.passes] == [True, True]


def test_siblings_share_a_pass_and_their_past():
    found = schedule([tree((-1, 50), (0, 11), (0, 11), (0, 9))], 1000)
    assert shapes(found) == [(1, 50, 0), (3, 10, 50)]
    assert found.passes[1].blocks[0].rows == (0,)


def test_leaves_after_a_long_past_have_a_pass_of_their_own():
    branches = [(0, 5)] * 6
    below = [(3, 4)]
    short, long = tree((-1, 10), *branches, *below), tree((-1, 40), *branches, *below)
    assert shapes(schedule([short], 100)) == [(1, 10, 0), (6, 5, 10), (1, 3, 15)]
    found = schedule([long], 100)
    assert shapes(found) == [(1, 40, 0), (5, 4, 40), (1, 5, 40), (1, 3, 45)]
    assert [part.inner for part in found.passes] == [True, False, True, False]


def test_children_of_different_rows_share_a_pass():
    found = schedule([tree((-1, 50), (0, 11)), tree((-1, 48), (0, 11), (0, 11))], 1000)
    assert shapes(found) == [(2, 50, 0), (3, 10, 50)]
    (block,) = found.passes[1].blocks
    assert sorted(block.rows) == [0, 0, 1]


def test_a_long_segment_is_divided_with_the_odd_piece_first():
    found = schedule([tree((-1, 101))], 30)
    assert shapes(found) == [(1, 10, 0), (1, 30, 10), (1, 30, 40), (1, 30, 70)]
    assert [part.keeps for part in found.passes] == [False, False, False, True]
    assert shapes(schedule([tree((-1, 101))], 30, divide=False)) == [(1, 100, 0)]


def test_sequences_are_padded_little():
    lengths = [random.Random(0).randint(50, 500) for _ in range(200)]
    found = schedule([tree((-1, n + 1)) for n in lengths], 4096)
    assert all(part.parent == -1 for part in found.passes)
    for part in found.passes[:-1]:
        assert part.shape.tokens <= 4096
        assert part.tokens >= PADDED_ENOUGH
    assert sum(part.shape.tokens for part in found.passes) <= sum(lengths) / (1 - MAX_PADDING) * 1.1


def test_only_the_first_token_of_a_child_needs_no_pass():
    child = TrainSegment(0, [1, 1, 1], [TrainSpan(0, 0, 0, 1)])
    assert shapes(schedule([TrainTree([TrainSegment(-1, [1] * 5), child])], 100)) == [(1, 5, 0)]


def test_nothing_to_train_needs_no_pass():
    assert schedule([tree((-1, 5))], 100, [False]).passes == []
    assert schedule([], 100).passes == []


def test_many_children_do_not_gather_their_past_all_at_once():
    found = schedule([tree((-1, 1000), *[(0, 2)] * 100)], 1100)
    assert all(part.shape.gathered <= 8 * 1100 for part in found.passes)
    assert len(found.passes) > 2


@pytest.mark.slow
def test_a_deep_tree_is_no_problem():
    deep = tree(*[(i - 1, 2) for i in range(3000)])
    assert len(schedule([deep], 100_000).passes) == 3000


@pytest.mark.parametrize(("groups", "units"), [("aabb", [0, 0, 1, 1]), ("aaaa", [0, 1, 2, 3])])
def test_groups_are_dealt_whole_if_there_are_enough(groups, units):
    rows = [TrainEpisode(str(i), group, 0.0) for i, group in enumerate(groups)]
    assert dealing_units(rows, 2) == units


def test_hands_are_of_similar_size_and_follow_the_seed():
    sizes = list(range(10, 90))
    hands = deal(sizes, 4, random.Random(1))
    totals = [sum(sizes[unit] for unit in hand) for hand in hands]
    assert [len(hand) for hand in hands] == [20] * 4
    assert max(totals) - min(totals) < 100
    assert hands == deal(sizes, 4, random.Random(1)) != deal(sizes, 4, random.Random(2))
    assert len(deal([5, 6], 4, random.Random(1))) == 2


def test_the_shape_of_a_pass_by_hand():
    shape = PassShape(rows=3, width=5, past=10)
    assert (shape.tokens, shape.pairs, shape.gathered) == (15, 225, 45)
