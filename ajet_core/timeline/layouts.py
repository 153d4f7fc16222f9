"""Layouts of token trees for a trainer: pure functions from trees to `TrainTree`s.

All are exact: each sampled token of each call is trained once, after the context it was sampled in.
They differ in how often context is computed.

| layout | a trained unit | context |
|---|---|---|
| ``separate`` | one call | once per call |
| ``linear`` | a path from root to leaf, with the calls that end on it | once per path |
| ``tree`` | the tree of an episode | once |
| ``group_tree`` | the trees of a group, merged into one | once for all rollouts of a task |

The very first token of a path has no context and cannot be trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from ajet_core.timeline.batch import TrainSegment, TrainSpan, TrainTree
from ajet_core.timeline.radix import FlatRun, RadixTree, Run
from ajet_core.timeline.tree import TokenNode, TokenTree

Layout = Literal["separate", "linear", "tree", "group_tree"]
LAYOUTS: tuple[Layout, ...] = ("separate", "linear", "tree", "group_tree")
LINEAR_LAYOUTS: tuple[Layout, ...] = ("separate", "linear")
"""Layouts whose trees have one segment, for trainers that do not support others."""


def lay_out(
    layout: Layout, trees: Sequence[TokenTree], first_calls: Sequence[int]
) -> list[TrainTree]:
    """Lay out the trees of one group as units for training.

    :param first_calls: for each tree, the index in `TrainBatch.calls` of its first call; the others
        follow in the order of `TokenTree.calls`.
    """
    if layout == "group_tree":
        return list(_group_trees(trees, first_calls))
    make = {"separate": _separate, "linear": _linear, "tree": _episode_trees}[layout]
    return [
        unit
        for tree, first_call in zip(trees, first_calls, strict=True)
        for unit in make(tree, first_call)
    ]


def _separate(tree: TokenTree, first_call: int) -> Iterator[TrainTree]:
    for number, call in enumerate(tree.calls):
        ids = tree.path_ids(tree.ends[number])
        size = len(call.sampled_ids)
        span = _trainable(TrainSpan(len(ids) - size, first_call + number, 0, size))
        if span is not None:
            yield TrainTree([TrainSegment(-1, ids, [span])])


def _linear(tree: TokenTree, first_call: int) -> Iterator[TrainTree]:
    """Yield the paths, each with the calls that end on it and on no earlier path.

    No path is longer than its trained calls. Calls that sampled the same tokens have a path each.
    """
    pieces: list[list[tuple[int, int]]] = [[] for _ in tree.calls]
    for index, node in enumerate(tree.nodes):
        for sampling in node.samplings:
            pieces[sampling.call].append((index, sampling.start))
    ending: dict[int, list[int]] = {}
    for call, end in enumerate(tree.ends):
        if pieces[call]:
            ending.setdefault(end, []).append(call)
    for leaf in tree.leaves():
        path = tree.path(leaf)
        waiting = [call for index in path for call in ending.pop(index, ())]
        while waiting:
            trained: dict[int, tuple[int, int]] = {}
            later = []
            for call in waiting:
                if any(index in trained for index, _ in pieces[call]):
                    later.append(call)
                else:
                    trained.update((index, (call, start)) for index, start in pieces[call])
            waiting = later
            unit = _sequence(tree, path, trained, first_call)
            if unit is not None:
                yield unit


def _sequence(
    tree: TokenTree, path: Sequence[int], trained: Mapping[int, tuple[int, int]], first_call: int
) -> TrainTree | None:
    """Return the path up to its last trained node; None if nothing on it can be trained.

    :param trained: call and start of the trained sampling, by node.
    """
    ids: list[int] = []
    spans: list[TrainSpan] = []
    growing = _Spans(spans)
    last = max(position for position, index in enumerate(path) if index in trained)
    for index in path[: last + 1]:
        node = tree.nodes[index]
        if (sampled := trained.get(index)) is not None:
            call, start = sampled
            span = TrainSpan(len(ids), first_call + call, start, len(node.token_ids))
            growing.add(_trainable(span))
        ids += node.token_ids
    return TrainTree([TrainSegment(-1, ids, spans)]) if spans else None


def _episode_trees(tree: TokenTree, first_call: int) -> Iterator[TrainTree]:
    flat = [
        FlatRun(
            node.parent,
            node.token_ids,
            tuple((first_call + sampling.call, sampling.start) for sampling in node.samplings),
        )
        for node in tree.nodes
    ]
    return _segmented(flat)


def _group_trees(trees: Sequence[TokenTree], first_calls: Sequence[int]) -> Iterator[TrainTree]:
    radix = RadixTree()
    for tree, first_call in zip(trees, first_calls, strict=True):
        ends: list[Run] = []
        for node in tree.nodes:
            after = ends[node.parent] if node.parent >= 0 else radix.root
            ends.append(_insert(radix, after, node, first_call))
    ranks = _ranks(radix)
    flat, _ = radix.flat(lambda run: ranks[id(run)])
    return _segmented(flat)


def _insert(radix: RadixTree, after: Run, node: TokenNode, first_call: int) -> Run:
    end = after
    for sampling in node.samplings:
        end = radix.insert(after, node.token_ids, first_call + sampling.call, sampling.start)
    return end if node.samplings else radix.insert(after, node.token_ids)


def _ranks(radix: RadixTree) -> dict[int, int]:
    """Rank runs in depth-first order, with siblings in the order of insertion."""
    ranks: dict[int, int] = {}
    stack = [radix.root]
    while stack:
        run = stack.pop()
        ranks[id(run)] = len(ranks)
        stack.extend(reversed(run.children.values()))
    return ranks


def _segmented(flat: Sequence[FlatRun]) -> Iterator[TrainTree]:
    """Yield one tree for each root.

    Runs without branches between them become one segment. Ends without trained tokens are omitted.
    """
    needed = [bool(run.sampled) for run in flat]
    children = [0] * len(flat)
    for index in range(len(flat) - 1, -1, -1):
        parent = flat[index].parent
        if needed[index] and parent >= 0:
            needed[parent] = True
            children[parent] += 1
    segments: dict[int, list[TrainSegment]] = {}
    growing: dict[tuple[int, int], _Spans] = {}
    place: dict[int, tuple[int, int]] = {}
    for index, run in enumerate(flat):
        if not needed[index]:
            continue
        if run.parent < 0:
            root, at = index, 0
            segments[root] = [TrainSegment(-1, [])]
        else:
            root, at = place[run.parent]
            if children[run.parent] > 1:
                segments[root].append(TrainSegment(at, []))
                at = len(segments[root]) - 1
        place[index] = root, at
        segment = segments[root][at]
        spans = growing.setdefault((root, at), _Spans(segment.spans))
        for call, start in run.sampled:
            span = TrainSpan(len(segment.token_ids), call, start, len(run.ids))
            spans.add(_trainable(span) if segment.parent < 0 else span)
        segment.token_ids.extend(run.ids)
    for its_segments in segments.values():
        if any(segment.spans for segment in its_segments):
            yield TrainTree(its_segments)


def _trainable(span: TrainSpan) -> TrainSpan | None:
    """Return a root's span without the first token, which has no context; None if it is empty."""
    if span.offset == 0 and span.length:
        span = TrainSpan(1, span.call, span.start + 1, span.length - 1)
    return span if span.length else None


class _Spans:
    """The spans of a segment; adjacent spans of a call are merged."""

    def __init__(self, spans: list[TrainSpan]) -> None:
        self._spans = spans
        # Index of a span by its call and its ends in the segment and the call.
        self._at: dict[tuple[int, int, int], int] = {}

    def add(self, span: TrainSpan | None) -> None:
        """Add a span; the spans of a call must be added in order."""
        if span is None:
            return
        number = self._at.pop((span.call, span.offset, span.start), None)
        if number is None:
            number = len(self._spans)
            self._spans.append(span)
        else:
            first = self._spans[number]
            span = TrainSpan(first.offset, first.call, first.start, first.length + span.length)
            self._spans[number] = span
        self._at[span.call, span.offset + span.length, span.start + span.length] = number
