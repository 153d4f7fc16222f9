"""Batches for tests of trainers."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace

from ajet_core.timeline import (
    SampledFrom,
    TrainBatch,
    TrainCall,
    TrainEpisode,
    TrainSegment,
    TrainSpan,
    TrainTree,
    group_advantages,
)

Scorer = Callable[[list[int], float], list[float]]
"""[T - 1] logprobs of tokens 1 to T - 1 of a sequence of T tokens, at a temperature."""


def linear_batch(
    vocab_size: int,
    score: Scorer | None = None,
    *,
    rewards: Sequence[float] = (1.0, 0.0, 0.5, 0.0),
    step: int = 1,
    seed: int = 0,
    noise: float = 0.0,
    temperatures: tuple[float, float] = (1.0, 1.0),
    groups: str = "",
    rows: int = 1,
) -> TrainBatch:
    """Create episodes of `rows` sequences of 12 to 39 tokens, each with two calls.

    :param score: computes behaviour logprobs; without it they are -3.
    :param noise: scale of normal noise added to them.
    :param temperatures: temperatures of the first and the second call of a sequence.
    :param groups: a letter for each episode; by default one group.
    """
    rng = random.Random(seed)  # noqa: S311
    names = list(groups) if groups else ["task"] * len(rewards)
    advantages = group_advantages(rewards, names, "group_std")
    trees: list[TrainTree] = []
    calls: list[TrainCall] = []
    for episode, advantage in enumerate(advantages):
        for _ in range(rows):
            size = rng.randrange(12, 40)
            ids = [rng.randrange(vocab_size) for _ in range(size)]
            spans = []
            for (start, end), temperature in zip(
                ((4, 8), (size - 3, size)), temperatures, strict=True
            ):
                logprobs = [-3.0] * size if score is None else score(ids, temperature)
                behaviour = [
                    value + noise * rng.gauss(0, 1) for value in logprobs[start - 1 : end - 1]
                ]
                spans.append(TrainSpan(start, len(calls), 0, end - start))
                calls.append(
                    TrainCall(
                        f"c{len(calls)}",
                        episode,
                        advantage,
                        temperature,
                        behaviour,
                        [0] * (end - start),
                    )
                )
            trees.append(TrainTree([TrainSegment(-1, ids, spans)]))
    episodes = [TrainEpisode(f"e{i}", names[i], reward) for i, reward in enumerate(rewards)]
    return TrainBatch(f"b{step}", step, episodes, calls, trees, sum(t.tokens for t in trees))


def restricted(batch: TrainBatch, vocab_size: int) -> TrainBatch:
    """Return a linear batch in which two of three calls were not sampled from the policy.

    One had penalties, a bias and kept some tokens, another kept some for its first token only.
    Their behaviour logprobs are -1.
    """
    rng = random.Random(7)  # noqa: S311
    calls = list(batch.calls)
    for tree in batch.trees:
        for span in tree.segments[0].spans:
            ids = tree.segments[0].token_ids[span.offset : span.offset + span.length]
            kept = [_runs({*rng.sample(range(vocab_size), 5), token_id}) for token_id in ids]
            whole = replace(
                SampledFrom.of([(-1.0, one) for one in kept]),
                frequency_penalty=0.5,
                presence_penalty=0.25,
                logit_bias=((ids[0], -0.5), (rng.randrange(vocab_size), 1.5)),
            )
            first = SampledFrom.of([(-1.0, one if i == 0 else b"") for i, one in enumerate(kept)])
            sampled_from = (whole, first, None)[span.call % 3]
            calls[span.call] = replace(calls[span.call], sampled_from=sampled_from)
    return replace(batch, calls=calls)


def _runs(ids: set[int]) -> bytes:
    edges = sorted({*ids, *(token_id + 1 for token_id in ids)})
    # An edge between two kept ids is none.
    edges = [edge for edge in edges if (edge in ids) != (edge - 1 in ids)]
    return struct.pack(f"<{len(edges)}I", *edges)


def favouring_batch(
    vocab_size: int, favoured: int, step: int, score: Scorer | None = None
) -> TrainBatch:
    """Create eight one-token episodes of one group; half sampled `favoured` and were rewarded."""
    rng = random.Random(step)  # noqa: S311
    calls, trees = [], []
    for episode in range(8):
        ids = [rng.randrange(vocab_size) for _ in range(6)]
        ids[-1] = favoured if episode % 2 else ids[-1]
        behaviour = [-3.0] if score is None else score(ids, 1.0)[-1:]
        advantage = 1.0 if episode % 2 else -1.0
        calls.append(TrainCall(f"{step}-{episode}", episode, advantage, 1.0, behaviour, [0]))
        trees.append(TrainTree([TrainSegment(-1, ids, [TrainSpan(5, episode, 0, 1)])]))
    episodes = [TrainEpisode(f"e{i}", "g", float(i % 2)) for i in range(8)]
    return TrainBatch(f"b{step}", step, episodes, calls, trees, 48)
