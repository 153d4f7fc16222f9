"""Conformance tests for mergers. Subclass `MergerSuite` in a test module."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ajet_core.interfaces import Merger
from ajet_core.timeline import LAYOUTS, Call, MessageText, PlacedMessage, TokenTree, lay_out
from ajet_testing.conformance import ConformanceSuite
from ajet_testing.suites.samples import conversation, make_call

__all__ = ["MergerSuite", "assert_exact", "assert_shared", "assert_trained_once", "assert_whole"]


def assert_whole(tree: TokenTree, calls: Sequence[Call]) -> None:
    """Check that every tree of `Merger.merge` loses nothing and counts alterations."""
    assert tree.calls == sorted(calls, key=lambda call: (call.index, call.call_id))
    assert tree.tokens_raw == sum(call.length for call in calls)
    for i, node in enumerate(tree.nodes):
        assert -1 <= node.parent < i, "a parent stands before its children"
        assert node.token_ids, "a node holds tokens"
    # For each call, the node and the offset in it of each of its sampled tokens.
    sampled: list[dict[int, tuple[int, int]]] = [{} for _ in tree.calls]
    for i, node in enumerate(tree.nodes):
        for sampling in node.samplings:
            for offset in range(len(node.token_ids)):
                place = sampled[sampling.call]
                assert sampling.start + offset not in place, "a token is sampled once by a call"
                place[sampling.start + offset] = (i, offset)
    for call, end, place in zip(tree.calls, tree.ends, sampled, strict=True):
        size = len(call.sampled_ids)
        assert sorted(place) == list(range(size)), "it keeps its sampled tokens"
        path = [(i, at) for i in tree.path(end) for at in range(len(tree.nodes[i].token_ids))]
        first = len(path) - size
        assert [place[i] for i in range(size)] == path[first:], "they are the end of its path"
        assert tree.path_ids(end)[first:] == call.sampled_ids, "they are the tokens that it sampled"
    assert (tree.tokens_altered == 0) == all(map(_is_exact, *_paths(tree))), "what differs counts"


def assert_exact(tree: TokenTree, calls: Sequence[Call]) -> None:
    """Check that `tree` is an exact merge of `calls`, see `MergerPromises`."""
    assert_whole(tree, calls)
    assert tree.tokens_altered == 0
    for call, ids in zip(*_paths(tree), strict=True):
        assert _is_exact(call, ids), "a call is a root-to-node path"


def assert_shared(tree: TokenTree) -> None:
    """Check that tokens that follow the same tokens are in the tree once."""
    branches: dict[int, set[int]] = {}
    for node in tree.nodes:
        first = branches.setdefault(node.parent, set())
        assert node.token_ids[0] not in first, "what is shared is held once"
        first.add(node.token_ids[0])


def assert_trained_once(tree: TokenTree) -> None:
    """Check that every layout trains each sampled token of each call once, in its context.

    That is the path to the token; `assert_exact` checks that it is the context of the call.
    """
    expected = sorted(
        (number, i, tuple(ids[: len(ids) - size + i + 1]))
        for number, (call, ids) in enumerate(zip(*_paths(tree), strict=True))
        for size in [len(call.sampled_ids)]
        for i in range(size)
        # The very first token of a sequence has no context, so it cannot be trained.
        if len(ids) - size + i > 0
    )
    for layout in LAYOUTS:
        trained = []
        for unit in lay_out(layout, [tree], [0]):
            before: list[list[int]] = []
            for segment in unit.segments:
                above = before[segment.parent] if segment.parent >= 0 else []
                before.append(above + segment.token_ids)
                for span in segment.spans:
                    for i in range(span.length):
                        context = above + segment.token_ids[: span.offset + i + 1]
                        trained.append((span.call, span.start + i, tuple(context)))
        assert sorted(trained) == expected, layout


def _paths(tree: TokenTree) -> tuple[list[Call], list[list[int]]]:
    """Return the calls, and for each the tokens from the root to its end."""
    return tree.calls, [tree.path_ids(end) for end in tree.ends]


def _is_exact(call: Call, ids: list[int]) -> bool:
    # A call that sampled nothing may end within a node.
    whole = len(ids) == call.length or not call.sampled_ids
    return whole and ids[: call.length] == call.token_ids


def _spoken(call: Call, messages: Sequence[tuple[int, str, str]], tools: str = "") -> Call:
    """Return `call` with messages: end in the prompt, role and text of each."""
    placed = []
    start = 0
    for end, role, text in messages:
        placed.append(PlacedMessage(start, end, MessageText(role, text)))
        start = end
    answer = MessageText("assistant", f"answer of {call.call_id}")
    return replace(call, messages=tuple(placed), answer=answer, tools=tools)


def _cases() -> dict[str, list[Call]]:
    turn = make_call("turn", [1, 2], [3, 4])
    return {
        "no calls": [],
        "conversation": conversation(6),
        "conversation without hints": conversation(6, hints=False),
        "two completions of one prompt": [
            make_call("a", [1, 2], [3, 4]),
            make_call("b", [1, 2], [5], index=1),
            make_call("on-a", [1, 2, 3, 4, 6], [7], index=2),
            make_call("on-b", [1, 2, 5, 6], [7], index=3),
        ],
        "the same completion twice": [
            make_call("a", [1, 2], [3, 4]),
            make_call("b", [1, 2], [3, 4], index=1),
            make_call("on", [1, 2, 3, 4, 5], [6], index=2),
            make_call("on-too", [1, 2, 3, 4, 5], [6], index=3),
        ],
        "a retry": [
            turn,
            make_call("first", [1, 2, 3, 4, 5], [6], index=1, parent=turn),
            make_call("again", [1, 2, 3, 4, 5], [7], index=2, parent=turn),
        ],
        "a rewritten history": [
            turn,
            make_call("rewritten", [1, 2, 3, 9, 5], [6], index=1, parent=turn),
        ],
        "a fork inside an answer": [
            turn,
            make_call("on", [1, 2, 3, 9], [5], index=1, parent=turn),
            make_call("on-too", [1, 2, 3, 9, 5, 6], [5], index=2),
        ],
        "one samples what another was given": [
            turn,
            make_call("short", [1], [2, 3, 8], index=1),
        ],
        "a base that is not among the calls": [
            make_call("on", [1, 2, 3, 4], [5], index=1, parent=make_call("lost", [1, 2], [3])),
        ],
        "nothing sampled": [
            make_call("aborted", [1, 2], []),
            make_call("retry", [1, 2], [3], index=1),
            make_call("aborted-later", [1, 2, 3, 4], [], index=2),
        ],
        "no context between two calls": [turn, make_call("on", [1, 2, 3, 4], [5], index=1)],
        "nothing at all": [make_call("empty", [], [])],
        "the same words in other tokens": [
            _spoken(make_call("a", [1, 2, 3, 9], [4]), [(3, "user", "up")]),
            _spoken(
                make_call("b", [1, 1, 2, 2, 3, 9, 4, 7, 8, 9], [5], index=1),
                [(5, "user", "up"), (7, "assistant", "answer of a"), (9, "user", "on")],
            ),
            _spoken(make_call("c", [1, 6, 2, 3, 9], [4], index=2), [(4, "user", "up")]),
        ],
        "the same words with other tools": [
            _spoken(make_call("a", [1, 2, 3, 9], [4]), [(3, "user", "up")], "one"),
            _spoken(make_call("b", [2, 2, 3, 9], [5], index=1), [(3, "user", "up")], "two"),
        ],
    }


class MergerSuite(ConformanceSuite):
    """Conformance tests of a `Merger`; a subclass creates one.

    Tests of what `Merger.promises` does not declare are skipped, with the reason.

    ::

        class TestMyMerger(MergerSuite):
            def make_merger(self, run_dir):
                return MyMerger(MySettings(), WorkerContext(run_dir))
    """

    def make_merger(self, run_dir: Path) -> Merger:
        """Create a merger."""
        raise NotImplementedError

    @pytest.fixture
    def merger(self, tmp_path: Path) -> Merger:
        """Return the merger under test."""
        return self.make_merger(tmp_path)

    @pytest.fixture(params=_cases(), ids=lambda name: str(name).replace(" ", "-"))
    def calls(self, request: pytest.FixtureRequest) -> list[Call]:
        """Return one of the cases."""
        return _cases()[request.param]

    def test_nothing_is_lost(self, merger: Merger, calls: list[Call]) -> None:
        assert_whole(merger.merge("episode", calls), calls)

    def test_an_exact_merge_is_exact(self, merger: Merger, calls: list[Call]) -> None:
        if not merger.promises.exact:
            pytest.skip("this merger does not promise to be exact")
        assert_exact(merger.merge("episode", calls), calls)

    def test_what_calls_share_is_held_once(self, merger: Merger, calls: list[Call]) -> None:
        _skip_unless_it_shares(merger)
        assert_shared(merger.merge("episode", calls))

    def test_every_sampled_token_is_trained_once(self, merger: Merger, calls: list[Call]) -> None:
        assert_trained_once(merger.merge("episode", calls))

    def test_merging_again_gives_the_same_tree(self, merger: Merger, calls: list[Call]) -> None:
        first = merger.merge("episode", calls)
        merger.merge("episode", conversation(3))
        assert merger.merge("episode", calls) == first

    def test_another_merger_gives_the_same_tree(
        self, merger: Merger, calls: list[Call], tmp_path: Path
    ) -> None:
        """The tools that show a run make a merger of their own."""
        assert self.make_merger(tmp_path).merge("episode", calls) == merger.merge("episode", calls)

    def test_another_process_gives_the_same_trees(
        self, other_process: Callable[..., Any], tmp_path: Path
    ) -> None:
        """Such as ``ajet inspect``, beside the server."""
        assert other_process("_merged", tmp_path) == self._merged(tmp_path)

    def test_the_order_of_the_calls_does_not_matter(
        self, merger: Merger, calls: list[Call]
    ) -> None:
        tree = merger.merge("episode", calls)
        assert merger.merge("episode", calls[::-1]) == tree
        assert merger.merge("episode", calls[1::2] + calls[::2]) == tree

    def test_calls_are_left_as_they_are(self, merger: Merger, calls: list[Call]) -> None:
        for given in (calls, calls[::-1]):
            before = copy.deepcopy(given)
            merger.merge("episode", given)
            assert given == before

    def test_a_conversation_is_held_once(self, merger: Merger) -> None:
        _skip_unless_it_shares(merger)
        calls = conversation(8, hints=False)
        tree = merger.merge("episode", calls)
        assert tree.tokens == len(calls[-1].token_ids)
        assert tree.tokens_sampled == 24

    def _merged(self, run_dir: Path) -> list[TokenTree]:
        merger = self.make_merger(run_dir)
        return [merger.merge("episode", calls) for calls in _cases().values()]


def _skip_unless_it_shares(merger: Merger) -> None:
    if not merger.promises.shares:
        pytest.skip("this merger does not promise to share tokens")
