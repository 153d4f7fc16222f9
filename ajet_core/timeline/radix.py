"""A radix tree of token ids that records which calls sampled them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain

Sampled = tuple[int, int]
"""(call, start): the run's first token is token `start` of the call's sampled tokens."""

_CHUNK = 64


@dataclass(slots=True, eq=False)
class Run:
    """Tokens without a branch between them; `start` is the depth of the first one in the tree.

    :param children: child runs by their first token.
    :param sampled: the calls that sampled exactly these tokens, none for context.
    """

    parent: Run | None
    start: int
    ids: list[int]
    children: dict[int, Run] = field(default_factory=dict)
    sampled: list[Sampled] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Depth after the last token."""
        return self.start + len(self.ids)

    def path_ids(self) -> list[int]:
        """Return [end] all tokens from the root on."""
        parts = []
        run: Run | None = self
        while run is not None:
            parts.append(run.ids)
            run = run.parent
        return list(chain.from_iterable(reversed(parts)))


@dataclass(frozen=True, slots=True)
class FlatRun:
    """A run in a list; see `RadixTree.flat`.

    :param parent: index in the list, -1 for a root.
    """

    parent: int
    ids: list[int]
    sampled: tuple[Sampled, ...]


class RadixTree:
    """A tree that grows by sequences of tokens. A place in it is the end of a run.

    The root is an empty run. Insertion takes time linear in the inserted tokens, which are compared
    with those in the tree, and in the tokens of the run in which it ends: at most one run is
    divided and copied.
    """

    def __init__(self) -> None:
        self.root = Run(None, 0, [])

    def __del__(self) -> None:
        # Runs refer to each other. The garbage collector counts objects, not the thousands of
        # tokens that each may hold, and would keep the runs of many batches.
        left = [self.root]
        while left:
            run = left.pop()
            left += run.children.values()
            run.parent, run.children = None, {}

    def insert(
        self, after: Run, ids: Sequence[int], call: int | None = None, start: int = 0
    ) -> Run:
        """Add `ids` after a place and return the place at their end.

        :param call: the call that sampled them, None for context.
        :param start: offset of the first token in the call's sampled tokens.
        """
        run, at, total = after, 0, len(ids)
        while at < total:
            child = run.children.get(ids[at])
            if child is None:
                child = Run(run, run.end, list(ids[at:]) if at else list(ids))
                run.children[ids[at]] = child
                same = len(child.ids)
            else:
                same = common_prefix(child.ids, ids, at)
                if same < len(child.ids):
                    child = self._divide(child, same)
            if call is not None:
                child.sampled.append((call, start + at))
            at += same
            run = child
        return run

    def place(self, below: Run, depth: int) -> Run:
        """Return the place at `depth` on the path from the root to `below`."""
        run = below
        while run.parent is not None and run.start >= depth:
            run = run.parent
        return self._divide(run, depth - run.start) if depth < run.end else run

    def match(self, ids: Sequence[int]) -> tuple[Run, int]:
        """Return the run in which the longest prefix of `ids` in the tree ends, and its length."""
        run, at, total = self.root, 0, len(ids)
        while at < total and (child := run.children.get(ids[at])) is not None:
            same = common_prefix(child.ids, ids, at)
            at += same
            run = child
            if same < len(child.ids):
                break
        return run, at

    def flat(self, order: Callable[[Run], int]) -> tuple[list[FlatRun], dict[int, int]]:
        """Return the runs as a list, parents first, with runs joined where nothing separates them.

        The same sequences in any order give the same list, if `order` ranks each run the same.

        :param order: ranks siblings; unique among them.
        :return: the list, and by ``id(run)`` the index of each run in it.
        """
        flat: list[FlatRun] = []
        index: dict[int, int] = {id(self.root): -1}
        stack = sorted(self.root.children.values(), key=order, reverse=True)
        while stack:
            run = stack.pop()
            assert run.parent is not None
            ids, last, joined = run.ids, run, [run]
            while len(last.children) == 1:
                (child,) = last.children.values()
                if not _continues(last, child):
                    break
                ids = ids + child.ids if last is run else _extended(ids, child.ids)
                last = child
                joined.append(child)
            for part in joined:
                index[id(part)] = len(flat)
            flat.append(FlatRun(index[id(run.parent)], ids, tuple(sorted(run.sampled))))
            stack.extend(sorted(last.children.values(), key=order, reverse=True))
        return flat, index

    def _divide(self, run: Run, count: int) -> Run:
        """Divide a run after `count` tokens; `run` becomes the lower part, return the upper."""
        upper = Run(run.parent, run.start, run.ids[:count], {run.ids[count]: run}, run.sampled)
        if run.parent is not None:
            run.parent.children[run.ids[0]] = upper
        run.parent = upper
        run.start += count
        run.ids = run.ids[count:]
        run.sampled = [(call, start + count) for call, start in run.sampled]
        return upper


def _continues(run: Run, child: Run) -> bool:
    """Return whether the same calls sampled the child right after the run, or none did."""
    size = len(run.ids)
    if len(run.sampled) != len(child.sampled):
        return False
    return sorted((call, start + size) for call, start in run.sampled) == sorted(child.sampled)


def _extended(ids: list[int], more: list[int]) -> list[int]:
    ids += more
    return ids


def common_prefix(ids: Sequence[int], other: Sequence[int], at: int) -> int:
    """Return how many of `ids` equal the tokens of `other` from `at` on."""
    limit = min(len(ids), len(other) - at)
    if ids[:limit] == other[at : at + limit]:
        return limit
    same = 0
    while ids[same : same + _CHUNK] == other[at + same : at + same + _CHUNK]:
        same += _CHUNK
    while ids[same] == other[at + same]:
        same += 1
    return same
