import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_core.timeline import Call
from ajet_server.batches.limits import Limited, OverLong, limit_timelines
from ajet_testing.suites.samples import conversation, make_call

from .episodes import episodes, tree_of


def forked() -> list[Call]:
    """A conversation of two turns, and a second, shorter timeline from its first answer."""
    first = make_call("0", [1, 2], [3])
    return [
        first,
        make_call("1", [1, 2, 3, 4], [5, 6], index=1, parent=first),
        make_call("2", [1, 2, 3, 7], [8], index=2, parent=first),
    ]


def test_without_limits_everything_stays() -> None:
    assert limit_timelines(tree_of(forked())) == Limited([0, 1, 2], [], [])


@pytest.mark.parametrize(
    ("over_long", "expected"),
    [
        # The first timeline has 6 tokens, the second 5; both go through call 0.
        ("drop", Limited([0, 2], [], [1])),
        ("truncate", Limited([0, 2], [], [1])),
        ("separate", Limited([0, 2], [1], [])),
    ],
)
def test_one_of_two_timelines_is_too_long(over_long: OverLong, expected: Limited) -> None:
    tree = tree_of(forked())
    assert limit_timelines(tree, max_tokens=5, over_long=over_long) == expected


@pytest.mark.parametrize(
    ("over_long", "expected"),
    [
        ("drop", Limited([], [], [0, 1, 2])),
        ("truncate", Limited([0, 1], [], [2])),
        ("separate", Limited([0, 1], [2], [])),
    ],
)
def test_a_conversation_is_too_long(over_long: OverLong, expected: Limited) -> None:
    # The calls end after 6, 11 and 16 tokens.
    tree = tree_of(conversation(3))
    assert limit_timelines(tree, max_tokens=15, over_long=over_long) == expected
    whole = Limited([0, 1, 2], [], [])
    assert limit_timelines(tree, max_tokens=16, over_long=over_long) == whole


def test_the_timeline_with_the_most_sampled_tokens_stays() -> None:
    tree = tree_of(forked())
    assert limit_timelines(tree, max_timelines=1) == Limited([0, 1], [], [2])
    assert limit_timelines(tree, max_timelines=2) == Limited([0, 1, 2], [], [])


def test_of_equal_timelines_the_earlier_stays() -> None:
    calls = [make_call(f"{i}", [1], [2 + i], index=i) for i in range(3)]
    assert limit_timelines(tree_of(calls), max_timelines=2) == Limited([0, 1], [], [2])


def test_what_is_too_long_takes_no_timelines_place() -> None:
    limited = limit_timelines(tree_of(forked()), max_tokens=5, max_timelines=1)
    assert limited == Limited([0, 2], [], [1])


def test_calls_that_are_trained_alone_take_the_places_the_tree_leaves() -> None:
    tree = tree_of(conversation(4))
    # Calls end after 6, 11, 16 and 21 tokens.
    limits = {"max_tokens": 11, "over_long": "separate"}
    assert limit_timelines(tree, max_timelines=3, **limits) == Limited([0, 1], [2, 3], [])  # type: ignore[arg-type]
    assert limit_timelines(tree, max_timelines=2, **limits) == Limited([0, 1], [2], [3])  # type: ignore[arg-type]
    assert limit_timelines(tree, max_timelines=1, **limits) == Limited([0, 1], [], [2, 3])  # type: ignore[arg-type]


@given(
    episodes(),
    st.none() | st.integers(1, 4),
    st.none() | st.integers(1, 12),
    st.sampled_from(["drop", "truncate", "separate"]),
)
def test_every_call_is_accounted_for(
    calls: list[Call], max_timelines: int | None, max_tokens: int | None, over_long: OverLong
) -> None:
    tree = tree_of(calls)
    limited = limit_timelines(
        tree, max_timelines=max_timelines, max_tokens=max_tokens, over_long=over_long
    )
    listed = limited.together + limited.alone + limited.dropped
    assert sorted(listed) == list(range(len(calls)))
    kept = tree_of([tree.calls[i] for i in limited.together])
    if max_timelines is not None:
        assert len(kept.leaves()) + len(limited.alone) <= max_timelines
    if max_tokens is not None:
        assert all(tree.calls[i].length <= max_tokens for i in limited.together)
