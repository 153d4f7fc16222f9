"""From token trees to the linear sequences a trainer is given."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.timeline.batch import TrainBatch, TrainEpisode, TrainSequence
from ajet_core.timeline.tree import TokenNode, TokenTree

_NO_VERSION = -1


def linear_sequences(tree: TokenTree, episode: int) -> list[TrainSequence]:
    """One sequence per root-to-leaf path that trains something.

    Every sampled token of `tree` is trained in exactly one sequence: that of the first leaf below it.
    In the other sequences through its node it is context. A path on which nothing is left to train
    is left out.

    :param episode: index of the tree's episode in `TrainBatch.episodes`.
    """
    trained: set[int] = set()
    sequences = []
    for leaf in tree.leaves():
        path = tree.path(leaf)
        fresh = {i for i in path if tree.nodes[i].sampled} - trained
        if fresh:
            trained |= fresh
            sequences.append(_sequence(tree.nodes, path, fresh, episode))
    return sequences


def build_batch(
    batch_id: str, step: int, episodes: Sequence[TrainEpisode], trees: Sequence[TokenTree]
) -> TrainBatch:
    """The input of a training step, from each episode's token tree.

    :param trees: of the same length and order as `episodes`.
    :raises ValueError: episodes and trees do not belong together.
    """
    if [e.episode_id for e in episodes] != [t.episode_id for t in trees]:
        raise ValueError(f"batch {batch_id}: episodes and token trees do not match one by one")
    sequences = [s for i, tree in enumerate(trees) for s in linear_sequences(tree, i)]
    return TrainBatch(
        batch_id=batch_id,
        step=step,
        episodes=list(episodes),
        sequences=sequences,
        tokens_raw=sum(tree.tokens_raw for tree in trees),
    )


def _sequence(
    nodes: Sequence[TokenNode], path: list[int], fresh: set[int], episode: int
) -> TrainSequence:
    sequence = TrainSequence(episode, [], [], [], [], [])
    for i in path:
        node = nodes[i]
        length = len(node.token_ids)
        trains = i in fresh
        sequence.token_ids.extend(node.token_ids)
        sequence.loss_mask.extend([trains] * length)
        sequence.behaviour_logprobs.extend(node.logprobs if trains else [0.0] * length)
        sequence.policy_versions.extend(node.policy_versions if trains else [_NO_VERSION] * length)
        # Greedy calls are scored at temperature 1: their logprobs are of the undivided logits.
        temperature = node.temperature if trains and node.temperature > 0 else 1.0
        sequence.temperatures.extend([temperature] * length)
    return sequence
