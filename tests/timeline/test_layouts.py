from hypothesis import given
from hypothesis import strategies as st

from ajet_core.timeline import LAYOUTS, LINEAR_LAYOUTS, Call, TrainSpan, TrainTree, lay_out
from ajet_testing.suites.merger_suite import assert_exact, assert_trained_once
from ajet_testing.suites.samples import conversation, make_call

from .episodes import episodes, tree_of


def trained(units: list[TrainTree]) -> list[tuple[int, int, tuple[int, ...]]]:
    """Each trained token as call, position in what it sampled, and all tokens up to it."""
    found = []
    for unit in units:
        before: list[list[int]] = []
        for segment in unit.segments:
            above = before[segment.parent] if segment.parent >= 0 else []
            before.append(above + segment.token_ids)
            for span in segment.spans:
                for i in range(span.length):
                    context = (*above, *segment.token_ids[: span.offset + i + 1])
                    found.append((span.call, span.start + i, context))
    return sorted(found)


@given(episodes())
def test_every_layout_trains_every_token_once_in_its_context(calls: list[Call]) -> None:
    tree = tree_of(calls)
    assert_exact(tree, calls)
    assert_trained_once(tree)


@given(st.lists(episodes(), max_size=3))
def test_layouts_of_a_group_train_the_same(made: list[list[Call]]) -> None:
    trees = [tree_of(calls) for calls in made]
    first_calls = [sum(len(t.calls) for t in trees[:i]) for i in range(len(trees))]
    expected = trained(lay_out("separate", trees, first_calls))
    for layout in LAYOUTS:
        assert trained(lay_out(layout, trees, first_calls)) == expected


@given(st.lists(episodes(), min_size=1, max_size=3))
def test_no_layout_computes_more_than_the_one_before(made: list[list[Call]]) -> None:
    trees = [tree_of(calls) for calls in made]
    first_calls = [sum(len(t.calls) for t in trees[:i]) for i in range(len(trees))]
    sizes = [sum(u.tokens for u in lay_out(layout, trees, first_calls)) for layout in LAYOUTS]
    assert sizes == sorted(sizes, reverse=True)


@given(episodes())
def test_linear_layouts_are_sequences_with_one_episode_each(calls: list[Call]) -> None:
    for layout in LINEAR_LAYOUTS:
        for unit in lay_out(layout, [tree_of(calls)], [0]):
            (segment,) = unit.segments
            covered = [i for s in segment.spans for i in range(s.offset, s.offset + s.length)]
            assert len(covered) == len(set(covered))
            assert max(covered) == len(segment.token_ids) - 1


@given(episodes())
def test_trees_have_no_segment_that_could_be_joined_or_left_out(calls: list[Call]) -> None:
    for unit in lay_out("tree", [tree_of(calls)], [0]):
        children = [0] * len(unit.segments)
        for segment in unit.segments[1:]:
            children[segment.parent] += 1
        assert 1 not in children
        for segment, count in zip(unit.segments, children, strict=True):
            assert count or segment.spans


def test_a_conversation_is_one_segment_in_which_calls_follow_each_other() -> None:
    tree = tree_of(conversation(2))
    expected = [TrainSpan(3, 10, 0, 3), TrainSpan(8, 11, 0, 3)]
    for layout in ("linear", "tree", "group_tree"):
        (unit,) = lay_out(layout, [tree], [10])
        (segment,) = unit.segments
        assert (segment.token_ids, segment.spans) == (tree.calls[1].token_ids, expected)


def test_a_node_that_two_calls_sampled_is_trained_for_both() -> None:
    calls = [make_call(f"c{i}", [1], [2, 3, i], index=i) for i in (4, 5)]
    tree = tree_of(calls)
    (unit,) = lay_out("tree", [tree], [0])
    assert unit.segments[0].spans == [TrainSpan(1, 0, 0, 2), TrainSpan(1, 1, 0, 2)]
    first, second = lay_out("linear", [tree], [0])
    assert first.segments[0].spans == [TrainSpan(1, 0, 0, 3)]
    assert second.segments[0].spans == [TrainSpan(1, 1, 0, 3)]


def test_a_group_shares_the_prompt_of_its_episodes() -> None:
    trees = [
        tree_of([make_call(f"e{i}-0", [1, 2, 3], [4 + i], episode_id=f"e{i}")]) for i in range(3)
    ]
    (unit,) = lay_out("group_tree", trees, [0, 1, 2])
    assert [s.token_ids for s in unit.segments] == [[1, 2, 3], [4], [5], [6]]
    assert [s.spans for s in unit.segments[1:]] == [[TrainSpan(0, i, 0, 1)] for i in range(3)]


def test_context_behind_the_last_trained_token_is_not_computed() -> None:
    calls = [make_call("a", [1], [2]), make_call("empty", [1, 2, 3, 4], [], index=1)]
    for layout in LAYOUTS:
        (unit,) = lay_out(layout, [tree_of(calls)], [0])
        assert [s.token_ids for s in unit.segments] == [[1, 2]]


def test_the_first_token_of_all_cannot_be_trained() -> None:
    for layout in LAYOUTS:
        (unit,) = lay_out(layout, [tree_of([make_call("a", [], [2, 3])])], [0])
        assert unit.segments[0].spans == [TrainSpan(1, 0, 1, 1)]
        assert lay_out(layout, [tree_of([make_call("a", [], [2])])], [0]) == []
