import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_core.testing.merger_suite import assert_trained_once
from ajet_core.timeline import TokenNode, TokenTree, TrainEpisode, build_batch, linear_sequences


def context(parent: int, *ids: int) -> TokenNode:
    return TokenNode(parent, list(ids), sampled=False)


def sampled(parent: int, *ids: int, temperature: float = 0.5) -> TokenNode:
    return TokenNode(
        parent=parent,
        token_ids=list(ids),
        sampled=True,
        logprobs=[-float(i) for i in ids],
        policy_versions=[i % 5 for i in ids],
        temperature=temperature,
        calls=("call",),
    )


def test_a_chain_is_one_sequence() -> None:
    tree = TokenTree("e", [context(-1, 1, 2), sampled(0, 3), context(1, 4), sampled(2, 5, 6)], 20)
    (sequence,) = linear_sequences(tree, 7)
    assert sequence.episode == 7
    assert sequence.token_ids == [1, 2, 3, 4, 5, 6]
    assert sequence.loss_mask == [False, False, True, False, True, True]
    assert sequence.behaviour_logprobs == [0.0, 0.0, -3.0, 0.0, -5.0, -6.0]
    assert sequence.temperatures == [1.0, 1.0, 0.5, 1.0, 0.5, 0.5]
    assert sequence.policy_versions == [-1, -1, 3, -1, 0, 1]


def test_a_shared_node_is_trained_by_the_first_leaf_below_it() -> None:
    tree = TokenTree("e", [context(-1, 1), sampled(0, 2), sampled(1, 3), sampled(1, 4)], 9)
    first, second = linear_sequences(tree, 0)
    assert (first.token_ids, first.loss_mask) == ([1, 2, 3], [False, True, True])
    assert (second.token_ids, second.loss_mask) == ([1, 2, 4], [False, False, True])
    assert second.behaviour_logprobs == [0.0, 0.0, -4.0]
    assert second.temperatures == [1.0, 1.0, 0.5]
    assert second.policy_versions == [-1, -1, 4]


def test_a_path_that_trains_nothing_is_left_out() -> None:
    tree = TokenTree("e", [context(-1, 1), sampled(0, 2), sampled(1, 3), context(1, 4)], 9)
    assert [s.token_ids for s in linear_sequences(tree, 0)] == [[1, 2, 3]]


def test_greedy_tokens_are_scored_at_temperature_one() -> None:
    tree = TokenTree("e", [sampled(-1, 1, 2, temperature=0.0)], 2)
    assert linear_sequences(tree, 0)[0].temperatures == [1.0, 1.0]


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    nodes: list[TokenNode] = []
    for i in range(draw(st.integers(0, 12))):
        parent = draw(st.integers(-1, i - 1))
        ids = draw(st.lists(st.integers(0, 9), min_size=1, max_size=3))
        nodes.append(sampled(parent, *ids) if draw(st.booleans()) else context(parent, *ids))
    return TokenTree("e", nodes, 0)


@given(trees())
def test_every_sampled_token_is_trained_once(tree: TokenTree) -> None:
    assert_trained_once(tree)


@given(trees())
def test_sequences_are_root_to_leaf_paths(tree: TokenTree) -> None:
    paths = [
        [t for i in tree.path(leaf) for t in tree.nodes[i].token_ids] for leaf in tree.leaves()
    ]
    for sequence in linear_sequences(tree, 0):
        assert sequence.token_ids in paths
        paths.remove(sequence.token_ids)
        assert any(sequence.loss_mask)


def test_a_batch_joins_the_episodes_in_order() -> None:
    episodes = [
        TrainEpisode("a", "g", 1.0),
        TrainEpisode("b", "g", 0.0),
        TrainEpisode("c", "g", 0.0),
    ]
    batch = build_batch(
        "batch",
        4,
        episodes,
        [
            TokenTree("a", [sampled(-1, 1)], 10),
            TokenTree("b", [], 0),
            TokenTree("c", [sampled(-1, 2)], 5),
        ],
    )
    assert (batch.batch_id, batch.step, batch.tokens_raw) == ("batch", 4, 15)
    assert batch.episodes == episodes
    assert [s.episode for s in batch.sequences] == [0, 2]


def test_trees_of_other_episodes_are_refused() -> None:
    with pytest.raises(ValueError, match="batch"):
        build_batch("batch", 1, [TrainEpisode("a", "g", 1.0)], [TokenTree("b", [], 0)])
