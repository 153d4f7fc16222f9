"""Validation of batches before training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ajet_core.errors import TrainerError
from ajet_core.timeline.batch import TrainBatch, TrainCall, TrainSegment, TrainSpan, TrainTree
from ajet_core.timeline.sampled_from import SampledFrom

__all__ = ["check_batch"]


def check_batch(
    batch: TrainBatch,
    vocab_size: int,
    units: Sequence[int],
    *,
    trees: bool,
    max_tokens: int | None = None,
) -> None:
    """Refuse a malformed batch.

    :param units: [episodes] the number of each episode's dealing unit, see
        `ajet_training.minibatches`.
    :param trees: whether trees may have several segments.
    :param max_tokens: maximum number of tokens of a context; None allows any number.
    :raises TrainerError: the batch is malformed; the message says where.
    """
    for number, call in enumerate(batch.calls):
        problem = _call_problem(call, len(batch.episodes), vocab_size)
        if problem:
            raise TrainerError(f"batch {batch.batch_id}, call {number} ({call.call_id}): {problem}")
    trained = [np.zeros(len(call.logprobs), np.int64) for call in batch.calls]
    for number, tree in enumerate(batch.trees):
        problem = (
            _tree_problem(tree, batch.calls, vocab_size, trees)
            or _unit_problem(tree, batch.calls, units)
            or _length_problem(tree, max_tokens)
        )
        if problem:
            raise TrainerError(f"batch {batch.batch_id}, tree {number}: {problem}")
        for span in _spans(tree):
            trained[span.call][span.start : span.start + span.length] += 1
    for call, counts in zip(batch.calls, trained, strict=True):
        if counts.max(initial=0) > 1:
            raise TrainerError(
                f"batch {batch.batch_id}: sampled token {int(counts.argmax())} of call "
                f"{call.call_id} is trained {int(counts.max())} times"
            )
        # Only the first token can have no context.
        if counts[1:].min(initial=1) < 1:
            raise TrainerError(
                f"batch {batch.batch_id}: sampled token {1 + int(counts[1:].argmin())} of "
                f"call {call.call_id} is not trained"
            )


def _call_problem(call: TrainCall, episodes: int, vocab_size: int) -> str:
    if not 0 <= call.episode < episodes:
        return f"it names episode {call.episode}, but there are only {episodes}"
    if len(call.policy_versions) != len(call.logprobs):
        return f"{len(call.logprobs)} logprobs, but {len(call.policy_versions)} policy_versions"
    if not call.temperature > 0:
        return f"its temperature {call.temperature} is not above 0"
    if call.sampled_from is not None:
        return _sampled_from_problem(call.sampled_from, len(call.logprobs), vocab_size)
    return ""


def _sampled_from_problem(sampled_from: SampledFrom, tokens: int, vocab_size: int) -> str:
    if not tokens == len(sampled_from.logprobs) == len(sampled_from.kept_of):
        return f"{tokens} logprobs, but sampled_from has another number"
    if not all(-1 <= number < len(sampled_from.kept) for number in sampled_from.kept_of):
        return "sampled_from.kept_of names a set that does not exist"
    for kept in sampled_from.kept:
        edges = np.frombuffer(kept, "<u4") if len(kept) % 8 == 0 else np.zeros(0, "<u4")
        if not (len(edges) and (edges[1:] > edges[:-1]).all() and edges[-1] <= vocab_size):
            return f"sampled_from.kept has an invalid set of the {vocab_size} token ids"
    if not all(0 <= token_id < vocab_size for token_id, _ in sampled_from.logit_bias):
        return f"sampled_from.logit_bias has a token outside the vocabulary of {vocab_size}"
    return ""


def _tree_problem(tree: TrainTree, calls: Sequence[TrainCall], vocab_size: int, trees: bool) -> str:
    if not tree.segments:
        return "it has no segments"
    if len(tree.segments) > 1 and not trees:
        return (
            f"it has {len(tree.segments)} segments, but this model is trained on linear "
            "sequences only (TrainerInfo.trees is False)"
        )
    for number, segment in enumerate(tree.segments):
        problem = _segment_problem(segment, number, calls, vocab_size)
        if problem:
            return f"segment {number}{problem}"
    return ""


def _segment_problem(
    segment: TrainSegment, number: int, calls: Sequence[TrainCall], vocab_size: int
) -> str:
    size = len(segment.token_ids)
    if not size:
        return " has no tokens"
    if not (min(segment.token_ids) >= 0 and max(segment.token_ids) < vocab_size):
        return f": a token id is outside the model's vocabulary of {vocab_size}"
    if not (segment.parent == -1 if number == 0 else 0 <= segment.parent < number):
        return f" has parent {segment.parent}, which does not precede it"
    for span in segment.spans:
        if number == 0 and span.offset == 0:
            return ": the first token of a tree has no context and cannot be trained"
        problem = _span_problem(span, size, calls)
        if problem:
            return f": {problem}"
    return ""


def _span_problem(span: TrainSpan, size: int, calls: Sequence[TrainCall]) -> str:
    if not 0 <= span.call < len(calls):
        return f"a span names call {span.call}, but there are only {len(calls)}"
    if span.length < 1 or span.offset < 0 or span.offset + span.length > size:
        return (
            f"a span of {span.length} tokens at {span.offset} exceeds the segment's {size} tokens"
        )
    sampled = len(calls[span.call].logprobs)
    if span.start < 0 or span.start + span.length > sampled:
        return (
            f"a span of {span.length} tokens at {span.start} exceeds the {sampled} tokens "
            f"that call {calls[span.call].call_id} sampled"
        )
    return ""


def _unit_problem(tree: TrainTree, calls: Sequence[TrainCall], units: Sequence[int]) -> str:
    if len({units[calls[span.call].episode] for span in _spans(tree)}) > 1:
        return (
            "it holds episodes that are distributed over minibatches one by one; trees of "
            "several episodes need one group, and at least as many groups as minibatches"
        )
    return ""


def _length_problem(tree: TrainTree, max_tokens: int | None) -> str:
    if max_tokens is None:
        return ""
    depths: list[int] = []
    for segment in tree.segments:
        above = depths[segment.parent] if segment.parent >= 0 else 0
        depths.append(above + len(segment.token_ids))
    if max(depths) > max_tokens:
        return (
            f"it has a context of {max(depths)} tokens, but the positions of this model are "
            f"consistent only up to {max_tokens}; set model.max_context or "
            "timelines.max_tokens"
        )
    return ""


def _spans(tree: TrainTree) -> list[TrainSpan]:
    return [span for segment in tree.segments for span in segment.spans]
