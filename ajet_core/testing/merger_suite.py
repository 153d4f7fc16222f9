"""What every merger must do. Subclass `MergerSuite` in a test module."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

import pytest

from ajet_core.interfaces import Merger
from ajet_core.testing.samples import conversation, make_call
from ajet_core.timeline import Call, TokenTree, linear_sequences


def assert_exact(tree: TokenTree, calls: Sequence[Call]) -> None:
    """Check that `tree` is an exact merge of `calls`, see `Merger.merge`."""
    assert tree.tokens_altered == 0
    assert tree.tokens_raw == sum(len(call.token_ids) for call in calls)
    by_id = {call.call_id: call for call in calls}
    found: set[str] = set()
    tokens_before: list[list[int]] = []
    for i, node in enumerate(tree.nodes):
        assert -1 <= node.parent < i, "a parent stands before its children"
        assert node.token_ids, "a node holds tokens"
        before = tokens_before[node.parent] if node.parent >= 0 else []
        tokens_before.append(before + node.token_ids)
        if not node.sampled:
            assert (node.logprobs, node.policy_versions, node.calls) == ([], [], ())
            continue
        assert node.calls, "a sampled node names the calls that sampled it"
        for call in (by_id[call_id] for call_id in node.calls):
            start = len(before) - len(call.prompt_ids)
            end = start + len(node.token_ids)
            assert call.token_ids[: len(tokens_before[i])] == tokens_before[i]
            assert 0 <= start < end <= len(call.sampled_ids)
            assert node.logprobs == call.logprobs[start:end]
            assert node.policy_versions == call.policy_versions[start:end]
            assert node.temperature == call.temperature
    for call in calls:
        sampled = sum(len(n.token_ids) for n in tree.nodes if call.call_id in n.calls)
        assert sampled == len(call.sampled_ids), f"{call.call_id} keeps its sampled tokens"
        if not call.token_ids or call.token_ids in tokens_before:
            found.add(call.call_id)
    assert found == by_id.keys(), "every call is a root-to-node path"


def assert_trained_once(tree: TokenTree) -> None:
    """Check that the sequences made of `tree` train every sampled token exactly once."""
    trained = [
        (tuple(s.token_ids[: i + 1]), s.behaviour_logprobs[i], s.policy_versions[i])
        for s in linear_sequences(tree, 0)
        for i, trains in enumerate(s.loss_mask)
        if trains
    ]
    sampled = []
    for leaf_or_inner, node in enumerate(tree.nodes):
        path = [t for i in tree.path(leaf_or_inner) for t in tree.nodes[i].token_ids]
        start = len(path) - len(node.token_ids)
        if node.sampled:
            values = zip(node.logprobs, node.policy_versions, strict=True)
            sampled += [(tuple(path[: start + i + 1]), *v) for i, v in enumerate(values)]
    assert sorted(trained) == sorted(sampled)


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
        "a wrong hint": [
            turn,
            make_call("other", [8], [9], index=1),
            make_call("on", [1, 2, 3, 4], [5], index=2, parent=make_call("other", [8], [9])),
        ],
        "a hint at no call": [
            turn,
            make_call("on", [1, 2, 3, 4], [5], index=1, parent=make_call("lost", [1], [2])),
        ],
        "nothing sampled": [
            make_call("aborted", [1, 2], []),
            make_call("retry", [1, 2], [3], index=1),
            make_call("aborted-later", [1, 2, 3, 4], [], index=2),
        ],
        "no context between two calls": [turn, make_call("on", [1, 2, 3, 4], [5], index=1)],
        "nothing at all": [make_call("empty", [], [])],
    }


class MergerSuite:
    """Conformance tests of a `Merger`; a subclass says how one is made.

    ::

        class TestMyMerger(MergerSuite):
            def make_merger(self, run_dir):
                return MyMerger(MySettings(), WorkerContext(run_dir))
    """

    def make_merger(self, run_dir: Path) -> Merger:
        """A merger."""
        raise NotImplementedError

    @pytest.fixture
    def merger(self, tmp_path: Path) -> Merger:
        """The merger under test."""
        return self.make_merger(tmp_path)

    @pytest.fixture(params=_cases(), ids=lambda name: str(name).replace(" ", "-"))
    def calls(self, request: pytest.FixtureRequest) -> list[Call]:
        """One of the cases."""
        return _cases()[request.param]

    def test_the_merge_is_exact(self, merger: Merger, calls: list[Call]) -> None:
        assert_exact(merger.merge("episode", calls, "exact"), calls)

    def test_every_sampled_token_is_trained_once(self, merger: Merger, calls: list[Call]) -> None:
        assert_trained_once(merger.merge("episode", calls, "exact"))

    def test_merging_again_gives_the_same_tree(self, merger: Merger, calls: list[Call]) -> None:
        first = merger.merge("episode", calls, "exact")
        merger.merge("episode", conversation(3), "exact")
        assert merger.merge("episode", calls, "exact") == first

    def test_calls_are_left_as_they_are(self, merger: Merger, calls: list[Call]) -> None:
        before = copy.deepcopy(calls)
        merger.merge("episode", calls, "exact")
        assert calls == before

    def test_a_conversation_is_held_once(self, merger: Merger) -> None:
        calls = conversation(8, hints=False)
        tree = merger.merge("episode", calls, "exact")
        assert tree.tokens == len(calls[-1].token_ids)
        assert tree.tokens_sampled == 24
