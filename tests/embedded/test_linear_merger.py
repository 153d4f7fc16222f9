from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_core.embedded.linear_merger import LinearMerger
from ajet_core.interfaces import ComponentSettings, Merger, WorkerContext
from ajet_core.testing.merger_suite import MergerSuite, assert_exact, assert_trained_once
from ajet_core.testing.samples import conversation, make_call
from ajet_core.timeline import Call, TokenTree


class TestLinearMerger(MergerSuite):
    def make_merger(self, run_dir: Path) -> Merger:
        return LinearMerger(ComponentSettings(), WorkerContext(run_dir))


def merge(calls: list[Call]) -> TokenTree:
    return LinearMerger(ComponentSettings(), WorkerContext(Path())).merge("episode", calls, "exact")


def chains(tree: TokenTree) -> list[list[str]]:
    """The calls of each chain, in order."""
    return [
        [call for i in tree.path(leaf) for call in tree.nodes[i].calls] for leaf in tree.leaves()
    ]


TOKENS = st.lists(st.integers(0, 2), max_size=3)


@st.composite
def episodes(draw: st.DrawFn) -> list[Call]:
    calls: list[Call] = []
    for index in range(draw(st.integers(0, 10))):
        before = draw(st.none() | st.sampled_from(calls)) if calls else None
        named = draw(st.none() | st.sampled_from(calls)) if calls else None
        prompt = (before.token_ids if before else []) + draw(TOKENS)
        calls.append(make_call(f"c{index}", prompt, draw(TOKENS), index=index, parent=named))
    return calls


@given(episodes())
def test_any_episode_is_merged_exactly(calls: list[Call]) -> None:
    tree = merge(calls)
    assert_exact(tree, calls)
    assert_trained_once(tree)


@given(episodes())
def test_chains_never_branch(calls: list[Call]) -> None:
    parents = [node.parent for node in merge(calls).nodes if node.parent >= 0]
    assert len(parents) == len(set(parents))


@pytest.mark.parametrize("hints", [True, False])
def test_a_conversation_is_one_chain(hints: bool) -> None:
    calls = conversation(5, hints=hints)
    tree = merge(calls)
    assert chains(tree) == [[call.call_id for call in calls]]
    assert [node.sampled for node in tree.nodes] == [False, True] * 5


def test_completions_of_one_prompt_are_chains_of_their_own() -> None:
    calls = [make_call(f"c{i}", [1, 2], [3 + i], index=i) for i in range(3)]
    assert chains(merge(calls)) == [["c0"], ["c1"], ["c2"]]


def test_the_longest_chain_is_extended() -> None:
    calls = [
        make_call("short", [1], [2]),
        make_call("long", [1], [2, 3], index=1),
        make_call("on", [1, 2, 3, 4], [5], index=2),
    ]
    assert chains(merge(calls)) == [["short"], ["long", "on"]]


def test_the_named_parent_goes_before_a_longer_chain() -> None:
    short = make_call("short", [1], [2])
    calls = [
        short,
        make_call("long", [1], [2, 3], index=1),
        make_call("on", [1, 2, 3, 4], [5], index=2, parent=short),
    ]
    assert chains(merge(calls)) == [["long"], ["short", "on"]]


def test_a_chain_is_extended_once() -> None:
    parent = make_call("parent", [1], [2])
    calls = [
        parent,
        make_call("first", [1, 2, 3], [4], index=1, parent=parent),
        make_call("retry", [1, 2, 3], [5], index=2, parent=parent),
    ]
    tree = merge(calls)
    assert chains(tree) == [["parent", "first"], ["retry"]]
    assert tree.tokens == 4 + 4


def test_no_context_node_when_a_call_adds_no_context() -> None:
    calls = [make_call("a", [1], [2]), make_call("b", [1, 2], [3], index=1)]
    assert [node.sampled for node in merge(calls).nodes] == [False, True, True]


def test_a_call_that_sampled_nothing_leaves_context_for_its_retry() -> None:
    calls = [make_call("aborted", [1, 2], []), make_call("retry", [1, 2], [3], index=1)]
    tree = merge(calls)
    assert [node.sampled for node in tree.nodes] == [False, True]
    assert tree.tokens_raw == 5


def test_a_node_knows_who_sampled_it_and_how() -> None:
    (call,) = calls = conversation(1)
    node = merge(calls).nodes[1]
    assert (node.temperature, node.agent) == (call.temperature, call.agent)
    assert (node.logprobs, node.policy_versions) == (call.logprobs, call.policy_versions)


def test_a_call_of_another_episode_is_refused() -> None:
    with pytest.raises(ValueError, match="another"):
        merge([make_call("call", [1], [2], episode_id="another")])
