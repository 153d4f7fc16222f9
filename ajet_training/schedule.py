"""Division of token trees into the passes of a trainer, within a token budget.

A pass computes R rows of up to L new tokens; each row continues from the keys and values of one row
of the parent pass, so that every token of a tree is computed once. Passes form a forest that is run
depth first: a pass, then the passes below it, then its backward pass, which by then has the
gradients of its keys and values. Only one path of passes is in memory. Where even that exceeds the
budget, the upper passes keep only their keys and values and are computed again before their
backward pass (`Pass.keeps` is False).

The rules do not depend on measured times, so that the same batch always runs the same way:

- Tokens after the last trained one of a path are not computed, and neither is that token itself,
  because nothing is predicted from it.
- Rows of similar length share a pass (`MAX_PADDING`), within the budget.
- Rows share a pass only if the heaviest paths below them fit into the budget together, so that
  their graphs can be kept.
- A segment longer than the budget is divided into consecutive pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ajet_core.timeline.batch import TrainTree
from ajet_core.timeline.cost import PassShape

__all__ = [
    "LEAST_ROOM",
    "MAX_PADDING",
    "MOST_GATHERED",
    "PADDED_ENOUGH",
    "Block",
    "Pass",
    "PassRow",
    "Schedule",
    "schedule",
]

PADDED_ENOUGH = 1024
"""A pass of this many tokens is closed rather than padded by more than `MAX_PADDING`."""
MAX_PADDING = 0.1
MOST_GATHERED = 8
"""A pass gathers the keys and values of at most this many budgets of tokens, unless one row needs
more: they take far less memory than activations, but are copied for every row."""
LEAST_ROOM = 8
"""A graph is kept only if this part of the budget, or all that is needed, remains for the passes
below."""


@dataclass(frozen=True, slots=True)
class PassRow:
    """Consecutive tokens of one segment, computed in one row of a pass.

    :param tree: index of the tree.
    :param segment: index in `TrainTree.segments`.
    :param start: offset of the first token in the segment.
    :param length: tokens, >= 1.
    :param parent: the row of the parent pass that this row continues, -1 for the start of a tree.
    :param past: number of tokens of the tree before the first.
    """

    tree: int
    segment: int
    start: int
    length: int
    parent: int
    past: int


@dataclass(frozen=True, slots=True)
class Block:
    """Keys and values of an earlier pass that a pass continues from.

    :param source: index of that pass.
    :param rows: its row for each row of this pass; a single one if it is the same for all.
    :param width: length of the longest of these rows; the others are padded.
    """

    source: int
    rows: tuple[int, ...]
    width: int


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward and backward pass.

    :param parent: index in `Schedule.passes`, -1 for a root.
    :param blocks: the past of the rows, oldest first; empty for a root.
    :param shape: sizes including padding.
    :param inner: whether other passes continue from this one.
    :param keeps: whether its graph is kept until its backward pass; if not, it is computed again.
    """

    rows: list[PassRow]
    parent: int
    blocks: tuple[Block, ...]
    shape: PassShape
    inner: bool
    keeps: bool

    @property
    def tokens(self) -> int:
        """The number of new tokens, without padding."""
        return sum(row.length for row in self.rows)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Passes in the order of their forward passes: parents first, subtrees contiguous."""

    passes: list[Pass]

    @property
    def subtrees(self) -> list[range]:
        """The indices of each root and the passes below it."""
        roots = [i for i, part in enumerate(self.passes) if part.parent < 0]
        bounds = [*roots, len(self.passes)]
        return [range(start, end) for start, end in pairwise(bounds)]

    @property
    def tokens(self) -> int:
        """The number of computed tokens, without padding and recomputation."""
        return sum(part.tokens for part in self.passes)

    @property
    def peak_tokens(self) -> int:
        """Maximum number of tokens, including padding, whose activations are in memory at once."""
        live: list[int] = []
        peak = 0
        for part in self.passes:
            above = live[part.parent] if part.parent >= 0 else 0
            tokens = part.shape.tokens
            peak = max(peak, above + tokens)
            live.append(above + (tokens if part.keeps else 0))
        return peak


@dataclass(frozen=True, slots=True)
class _Lane:
    """The rest of a segment, as a candidate for a row.

    :param left: tokens of the segment from `start` on.
    :param heaviest: `left` plus the tokens of the longest path below.
    :param total: `left` plus all tokens below.
    """

    tree: int
    segment: int
    start: int
    parent: int
    past: int
    left: int
    heaviest: int
    total: int


@dataclass(frozen=True, slots=True)
class _Job:
    """A pass to create."""

    lanes: list[_Lane]
    parent: int
    room: int


@dataclass(frozen=True, slots=True)
class _Shape:
    """Sizes of a tree's segments, by index.

    :param lengths: tokens to compute, 0 for an omitted segment.
    :param heaviest: sizes with the longest path below; `totals` with everything below.
    """

    lengths: list[int]
    heaviest: list[int]
    totals: list[int]
    children: list[list[int]]


def schedule(
    trees: Sequence[TrainTree],
    budget: int,
    trains: Sequence[bool] | None = None,
    *,
    divide: bool = True,
) -> Schedule:
    """Divide `trees` into passes.

    :param budget: maximum number of tokens in memory at once, including padding; >= 1.
    :param trains: whether each call of the batch trains anything; spans of other calls are ignored.
        None if all do.
    :param divide: whether segments may be divided; if not, a segment longer than the budget is a
        separate pass.
    """
    shapes = [_shape(tree, trains) for tree in trees]
    first = [
        _Lane(i, 0, 0, -1, 0, shape.lengths[0], shape.heaviest[0], shape.totals[0])
        for i, shape in enumerate(shapes)
        if shape.lengths[0]
    ]
    passes: list[Pass] = []
    waiting = [_Job(lanes, -1, budget) for lanes in _chunks(first, budget, budget)][::-1]
    while waiting:
        job = waiting.pop()
        rows = [_row(lane, job.room if divide else lane.left) for lane in job.lanes]
        below = list(_continuations(job.lanes, rows, shapes))
        blocks = _blocks(passes, job.parent, rows)
        width = max(row.length for row in rows)
        shape = PassShape(len(rows), width, sum(block.width for block in blocks))
        room = job.room - shape.tokens
        keeps = not below or _fits(below, room, budget)
        here = len(passes)
        passes.append(Pass(rows, job.parent, blocks, shape, inner=bool(below), keeps=keeps))
        left = room if keeps else job.room
        waiting.extend(_Job(lanes, here, left) for lanes in _chunks(below, left, budget)[::-1])
    return Schedule(passes)


def _shape(tree: TrainTree, trains: Sequence[bool] | None) -> _Shape:
    count = len(tree.segments)
    lengths, longest, below = [0] * count, [0] * count, [0] * count
    alive = [False] * count
    children: list[list[int]] = [[] for _ in range(count)]
    for i in reversed(range(count)):
        segment = tree.segments[i]
        if alive[i]:
            # A token is predicted from its last one, or another segment continues it.
            lengths[i] = len(segment.token_ids)
        else:
            ends = [
                span.offset + span.length
                for span in segment.spans
                if trains is None or trains[span.call]
            ]
            if not ends:
                continue
            lengths[i] = max(ends) - 1
        children[i].reverse()
        if segment.parent >= 0:
            up = segment.parent
            alive[up] = True
            if lengths[i]:
                children[up].append(i)
                longest[up] = max(longest[up], lengths[i] + longest[i])
                below[up] += lengths[i] + below[i]
    heaviest = [a + b for a, b in zip(lengths, longest, strict=True)]
    return _Shape(lengths, heaviest, [a + b for a, b in zip(lengths, below, strict=True)], children)


def _row(lane: _Lane, room: int) -> PassRow:
    # The odd piece comes first, because the last one is not computed twice.
    length = lane.left if lane.left <= room else (lane.left - 1) % room + 1
    return PassRow(lane.tree, lane.segment, lane.start, length, lane.parent, lane.past)


def _continuations(
    lanes: Sequence[_Lane], rows: Sequence[PassRow], shapes: Sequence[_Shape]
) -> Iterator[_Lane]:
    for number, (lane, row) in enumerate(zip(lanes, rows, strict=True)):
        past = row.past + row.length
        if row.length < lane.left:
            yield _Lane(
                lane.tree,
                lane.segment,
                row.start + row.length,
                number,
                past,
                lane.left - row.length,
                lane.heaviest - row.length,
                lane.total - row.length,
            )
            continue
        shape = shapes[lane.tree]
        for child in shape.children[lane.segment]:
            yield _Lane(
                lane.tree,
                child,
                0,
                number,
                past,
                shape.lengths[child],
                shape.heaviest[child],
                shape.totals[child],
            )


def _fits(below: Sequence[_Lane], room: int, budget: int) -> bool:
    if room < max(lane.heaviest for lane in below):
        return False
    return room >= budget // LEAST_ROOM or room >= sum(lane.total for lane in below)


def _chunks(lanes: Sequence[_Lane], room: int, budget: int) -> list[list[_Lane]]:
    """Group candidates into passes of at most `room` tokens; a single candidate may exceed it.

    Those that nothing continues from have passes of their own if the rows would copy much past,
    because a trainer may compute many of them in one row.
    """
    if sum(lane.past for lane in lanes) > budget:
        ends = [lane for lane in lanes if lane.total == lane.left]
        if 0 < len(ends) < len(lanes):
            others = [lane for lane in lanes if lane.total > lane.left]
            return [*_chunks(ends, room, budget), *_chunks(others, room, budget)]
    chunks: list[list[_Lane]] = []
    real = heaviest = past = 0
    # Sort equal lengths by parent, so that rows with the same past are adjacent.
    for lane in sorted(lanes, key=lambda lane: (lane.left, lane.parent)):
        if chunks:
            count = len(chunks[-1]) + 1
            padded = count * lane.left
            wasteful = padded * (1 - MAX_PADDING) > real + lane.left and real >= PADDED_ENOUGH
            past_then = max(past, lane.past)
            gathered = count * (past_then + lane.left) if past_then else 0
            if (
                padded <= room
                and heaviest + lane.heaviest <= room
                and gathered <= MOST_GATHERED * budget
                and not wasteful
            ):
                chunks[-1].append(lane)
                real += lane.left
                heaviest += lane.heaviest
                past = past_then
                continue
        chunks.append([lane])
        real, heaviest, past = lane.left, lane.heaviest, lane.past
    return chunks


def _blocks(passes: Sequence[Pass], parent: int, rows: Sequence[PassRow]) -> tuple[Block, ...]:
    if parent < 0:
        return ()
    above = passes[parent]
    wanted = [row.parent for row in rows]
    own = Block(parent, tuple(range(len(above.rows))), above.shape.width)
    if len(set(wanted)) == 1:
        # The usual case, which avoids a new block for every pass above in a deep tree.
        return tuple(
            block
            if len(block.rows) == 1
            else _narrowed(passes, block.source, [block.rows[wanted[0]]])
            for block in (*above.blocks, own)
        )
    return tuple(
        _narrowed(
            passes, block.source, [block.rows[row if len(block.rows) > 1 else 0] for row in wanted]
        )
        for block in (*above.blocks, own)
    )


def _narrowed(passes: Sequence[Pass], source: int, rows: list[int]) -> Block:
    if len(set(rows)) == 1:
        rows = rows[:1]
    return Block(source, tuple(rows), max(passes[source].rows[row].length for row in rows))
