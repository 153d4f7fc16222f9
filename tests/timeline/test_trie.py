import gc
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_core.timeline import Call, Sampling, TokenTree
from ajet_core.timeline.radix import RadixTree, Run
from ajet_server.embedded.trie import TokenTrie
from ajet_testing.suites.merger_suite import assert_exact, assert_shared, assert_trained_once
from ajet_testing.suites.samples import conversation, make_call

from .episodes import episodes, spoken, tree_of


@given(episodes())
def test_any_episode_is_held_exactly(calls: list[Call]) -> None:
    tree = tree_of(calls)
    assert_exact(tree, calls)
    assert_shared(tree)
    assert_trained_once(tree)


@given(episodes(), st.randoms(use_true_random=False))
def test_the_order_of_the_calls_makes_no_difference(calls: list[Call], rng: random.Random) -> None:
    shuffled = list(calls)
    rng.shuffle(shuffled)
    assert tree_of(shuffled) == tree_of(calls)


@given(episodes())
def test_how_calls_are_held_makes_no_difference(calls: list[Call]) -> None:
    whole = [make_call(c.call_id, c.prompt_ids, c.sampled_ids, index=c.index) for c in calls]
    assert tree_of(whole) == tree_of(calls)


@given(episodes())
def test_the_tree_holds_each_distinct_prefix_once(calls: list[Call]) -> None:
    prefixes = {tuple(c.token_ids[:n]) for c in calls for n in range(1, c.length + 1)}
    assert tree_of(calls).tokens == len(prefixes)


def test_identical_sampled_tokens_share_a_node() -> None:
    calls = [make_call(f"c{i}", [1], [2, 3, i], index=i) for i in (4, 5)]
    tree = tree_of(calls)
    assert [node.token_ids for node in tree.nodes] == [[1], [2, 3], [4], [5]]
    assert tree.nodes[1].samplings == (Sampling(0, 0), Sampling(1, 0))
    assert tree.nodes[3].samplings == (Sampling(1, 2),)
    assert (tree.tokens_raw, tree.tokens, tree.tokens_sampled) == (8, 5, 4)


def test_tokens_that_one_call_sampled_and_another_was_given_are_sampled() -> None:
    calls = [make_call("given", [1, 2], [3]), make_call("sampled", [1], [2, 5], index=1)]
    tree = tree_of(calls)
    assert [(n.token_ids, n.sampled) for n in tree.nodes] == [
        ([1], False),
        ([2], True),
        ([3], True),
        ([5], True),
    ]


def test_time_is_linear_in_what_is_new() -> None:
    """Counted in tokens that are looked at: a prompt that refuses to be read proves it."""

    class Unreadable(Call):
        @property
        def prompt_ids(self) -> list[int]:
            raise AssertionError("the shared tokens of a prompt were read")

    calls: list[Call] = []
    for call in conversation(5):
        calls.append(
            Unreadable(
                call_id=call.call_id,
                episode_id=call.episode_id,
                index=call.index,
                suffix_ids=call.suffix_ids,
                sampled_ids=call.sampled_ids,
                logprobs=call.logprobs,
                policy_versions=call.policy_versions,
                temperature=1.0,
                finish_reason="stop",
                base=calls[-1] if calls else None,
                shared=call.shared,
            )
        )
    trie = TokenTrie("episode")
    for call in calls:
        trie.add(call)
    assert len(trie.tree().nodes) == 10


def test_the_nearest_call_shares_the_most_tokens() -> None:
    trie = TokenTrie("episode")
    first = make_call("first", [1, 2, 3], [4])
    second = make_call("second", [1, 2, 7], [8], index=1)
    for call in (first, second):
        trie.add(call)
    assert trie.nearest([1, 2, 3, 9]) == (first, 3)
    assert trie.nearest([1, 2, 7, 8, 5]) == (second, 4)
    assert trie.nearest([1, 2]) == (second, 2)
    assert trie.nearest([9]) == (None, 0)


def test_the_wrong_calls_are_refused() -> None:
    trie = TokenTrie("episode")
    trie.add(make_call("a", [1], [2]))
    with pytest.raises(ValueError, match="already been added"):
        trie.add(make_call("a", [1], [2]))
    with pytest.raises(ValueError, match="another"):
        trie.add(make_call("b", [1], [2], episode_id="another"))


SYSTEM = ("system", "Be brief.", [1, 2])
USER = ("user", "go", [3, 4])
RESULT = ("tool", "seen", [5])


def talk(echo: list[int], tools: str = "") -> list[Call]:
    """Two turns; the second one writes the first answer as `echo`, after the header 99."""
    first = spoken("c0", 0, [SYSTEM, USER], ("up", [20, 21, 29]))
    said = [SYSTEM, USER, ("assistant", "up", [99, *echo]), RESULT]
    return [first, spoken("c1", 1, said, ("left", [22, 29]), tools=tools)]


def test_exact_merging_branches_where_tokens_differ() -> None:
    tree = tree_of(talk([30, 21, 29]))
    assert (len(tree.leaves()), tree.tokens_altered) == (2, 0)


def test_text_merging_keeps_the_sampled_tokens_and_counts_what_it_altered() -> None:
    tree = tree_of(talk([30, 21, 29]), "text")
    (leaf,) = tree.leaves()
    assert tree.path_ids(leaf) == [1, 2, 3, 4, 99, 20, 21, 29, 5, 99, 22, 29]
    assert tree.tokens_altered == 1
    assert_trained_once_in_any_context(tree_of(talk([30, 21, 29]), "text"))


def assert_trained_once_in_any_context(tree: TokenTree) -> None:
    sampled = [0] * len(tree.calls)
    for node in tree.nodes:
        for sampling in node.samplings:
            sampled[sampling.call] += len(node.token_ids)
    assert sampled == [len(call.sampled_ids) for call in tree.calls]


def test_text_merging_alters_nothing_where_tokens_are_the_same() -> None:
    tree = tree_of(talk([20, 21, 29]), "text")
    assert (len(tree.leaves()), tree.tokens_altered) == (1, 0)


def test_text_merging_does_not_merge_other_text() -> None:
    calls = [
        spoken("c0", 0, [SYSTEM, USER], ("up", [20])),
        spoken("c1", 1, [("system", "Be kind.", [1, 8]), USER], ("up", [20])),
    ]
    assert len(tree_of(calls, "text").leaves()) == 2


def test_tools_matter_unless_they_are_ignored() -> None:
    def calls() -> list[Call]:
        first = spoken("c0", 0, [("system", "Be brief.", [1, 2]), USER], ("up", [20]), tools="a")
        # The template writes the tools into the system message.
        said = [("system", "Be brief.", [1, 7, 7]), USER, ("assistant", "up", [99, 20]), RESULT]
        return [first, spoken("c1", 1, said, ("left", [22]), tools="b")]

    assert len(tree_of(calls(), "text").leaves()) == 2
    tree = tree_of(calls(), "ignore_tools")
    assert (len(tree.leaves()), tree.tokens_altered) == (1, 2)


def test_a_call_that_goes_on_from_an_altered_one_follows_it() -> None:
    first, second = talk([30, 21, 29])
    third = make_call("c2", [*second.token_ids, 6], [23], index=2, parent=second)
    tree = tree_of([first, second, third], "text")
    (leaf,) = tree.leaves()
    assert tree.path_ids(leaf) == [1, 2, 3, 4, 99, 20, 21, 29, 5, 99, 22, 29, 6, 23]


def test_a_cut_off_answer_is_not_merged_by_its_text() -> None:
    first, second = talk([30, 21, 29])
    cut = Call(
        **{
            name: getattr(first, name)
            for name in Call.__dataclass_fields__
            if name != "finish_reason"
        },
        finish_reason="length",
    )
    assert len(tree_of([cut, second], "text").leaves()) == 2


def test_a_tree_that_nobody_needs_is_gone_without_a_collector_of_cycles() -> None:
    def runs() -> int:
        return sum(type(thing) is Run for thing in gc.get_objects())

    gc.disable()
    # Only objects that this test creates are looked at.
    gc.freeze()
    try:
        tree = RadixTree()
        for last in range(5):
            tree.insert(tree.root, [1, 2, last])
        assert runs() > 5
        del tree
        assert runs() == 0
    finally:
        gc.unfreeze()
        gc.enable()
