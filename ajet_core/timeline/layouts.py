"""The ways to lay out token trees for a trainer: pure functions from trees to `TrainTree`s.

All are exact: each sampled token of each call is trained once, after the context it was sampled in. They differ
in how often context is computed.

| layout | a trained unit | context |
|---|---|---|
| ``separate`` | one call | as often as there are calls |
| ``linear`` | a path from root to leaf, trained where no path before it was | once for each path |
| ``tree`` | the tree of an episode | once |
| ``group_tree`` | the trees of a group, put into one | once for all rollouts of a task |

The very first token of a path has no context, so nothing can be trained there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from ajet_core.timeline.batch import TrainSegment, TrainSpan, TrainTree
from ajet_core.timeline.radix import FlatRun, RadixTree, Run
from ajet_core.timeline.tree import TokenNode, TokenTree

Layout = Literal["separate", "linear", "tree", "group_tree"]
LAYOUTS: tuple[Layout, ...] = ("separate", "linear", "tree", "group_tree")
LINEAR_LAYOUTS: tuple[Layout, ...] = ("separate", "linear")
"""Those whose trees have one segment, for trainers that know no others."""


def lay_out(
    layout: Layout, trees: Sequence[TokenTree], first_calls: Sequence[int]
) -> list[TrainTree]:
    """The trained units of the trees of one group.

    :param first_calls: of each tree, the index in `TrainBatch.calls` of its first call; the others follow in
        the order of `TokenTree.calls`.
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
    """Path after path, until every sampling of every node is in one.

    A node that several calls sampled is trained in as many paths, once for each of them.
    """
    waiting = [list(node.samplings) for node in tree.nodes]
    paths = [tree.path(leaf) for leaf in tree.leaves()]
    while paths:
        unfinished = []
        for path in paths:
            while path and not waiting[path[-1]]:
                path.pop()
            if not path:
                continue
            ids: list[int] = []
            spans: list[TrainSpan] = []
            for index in path:
                node = tree.nodes[index]
                if waiting[index]:
                    sampling = waiting[index].pop(0)
                    call = first_call + sampling.call
                    span = TrainSpan(len(ids), call, sampling.start, len(node.token_ids))
                    _add(spans, _trainable(span))
                ids += node.token_ids
            unfinished.append(path)
            if spans:
                yield TrainTree([TrainSegment(-1, ids, spans)])
        paths = unfinished


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
    """An order of siblings: as their first tokens were inserted."""
    ranks: dict[int, int] = {}
    stack = [radix.root]
    while stack:
        run = stack.pop()
        ranks[id(run)] = len(ranks)
        stack.extend(reversed(run.children.values()))
    return ranks


def _segmented(flat: Sequence[FlatRun]) -> Iterator[TrainTree]:
    """One tree for each root: runs that nothing branches off between become one segment, and what trains
    nothing is left out at the ends."""
    needed = [bool(run.sampled) for run in flat]
    children = [0] * len(flat)
    for index in range(len(flat) - 1, -1, -1):
        parent = flat[index].parent
        if needed[index] and parent >= 0:
            needed[parent] = True
            children[parent] += 1
    segments: dict[int, list[TrainSegment]] = {}
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
        for call, start in run.sampled:
            span = TrainSpan(len(segment.token_ids), call, start, len(run.ids))
            if segment.parent < 0:
                _add(segment.spans, _trainable(span))
            else:
                _add(segment.spans, span)
        segment.token_ids.extend(run.ids)
    for found in segments.values():
        if any(segment.spans for segment in found):
            yield TrainTree(found)


def _trainable(span: TrainSpan) -> TrainSpan | None:
    """A span at a root without the token that nothing comes before; None if nothing is left."""
    if span.offset == 0 and span.length:
        span = TrainSpan(1, span.call, span.start + 1, span.length - 1)
    return span if span.length else None


def _add(spans: list[TrainSpan], span: TrainSpan | None) -> None:
    """Add a span, as a longer last one where it just goes on."""
    if span is None:
        return
    for number in range(len(spans) - 1, -1, -1):
        last = spans[number]
        if last.offset + last.length < span.offset:
            break
        ends = (last.call, last.offset + last.length, last.start + last.length)
        if ends == (span.call, span.offset, span.start):
            spans[number] = TrainSpan(last.offset, last.call, last.start, last.length + span.length)
            return
    spans.append(span)
