"""A radix tree of token ids that remembers who sampled which of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Sampled = tuple[int, int]
"""(call, start): the run's first token is token `start` of what the call sampled."""

_CHUNK = 64


@dataclass(slots=True, eq=False)
class Run:
    """Tokens without a branch in between; `start` is the depth of the first one in the tree.

    :param children: by their first token.
    :param sampled: who sampled these very tokens, none for context.
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
        """[end] all tokens from the root on."""
        parts = []
        run: Run | None = self
        while run is not None:
            parts.append(run.ids)
            run = run.parent
        ids: list[int] = []
        for part in reversed(parts):
            ids += part
        return ids


@dataclass(frozen=True, slots=True)
class FlatRun:
    """A run in a list; see `RadixTree.flat`.

    :param parent: index in the list, -1 for a root.
    """

    parent: int
    ids: list[int]
    sampled: tuple[Sampled, ...]


class RadixTree:
    """Grows by sequences of tokens. A place in it is the end of a run; the root is an empty run.

    Inserting takes time linear in the inserted tokens, which are compared with what is there, and in the tokens
    of the run that it ends in: at most one is divided, and then copied.
    """

    def __init__(self) -> None:
        self.root = Run(None, 0, [])

    def __del__(self) -> None:
        # Runs point at each other. The collector of cycles counts them, not the thousands of tokens that each may
        # hold, and would leave many batches of them lying about.
        left = [self.root]
        while left:
            run = left.pop()
            left += run.children.values()
            run.parent, run.children = None, {}

    def insert(
        self, after: Run, ids: Sequence[int], call: int | None = None, start: int = 0
    ) -> Run:
        """Add `ids` after a place and return the place behind them.

        :param call: who sampled them, None for context.
        :param start: of the first token in what `call` sampled.
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
        """The place at `depth` on the way from the root to `below`."""
        run = below
        while run.parent is not None and run.start >= depth:
            run = run.parent
        return self._divide(run, depth - run.start) if depth < run.end else run

    def match(self, ids: Sequence[int]) -> tuple[Run, int]:
        """The run in which the longest prefix of `ids` that is in the tree ends, and its length."""
        run, at, total = self.root, 0, len(ids)
        while at < total and (child := run.children.get(ids[at])) is not None:
            same = common_prefix(child.ids, ids, at)
            at += same
            run = child
            if same < len(child.ids):
                break
        return run, at

    def flat(self, order: Callable[[Run], int]) -> tuple[list[FlatRun], dict[int, int]]:
        """The runs as a list, parents first, joined where nothing sets them apart.

        The same sequences, inserted in any order, give the same list if `order` gives each run the same.

        :param order: ranks siblings; unique among them.
        :return: the list, and the index in it by ``id(run)`` of each run.
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
        """Divide a run after `count` tokens; `run` becomes the lower part, the upper one is returned."""
        upper = Run(run.parent, run.start, run.ids[:count], {run.ids[count]: run}, run.sampled)
        if run.parent is not None:
            run.parent.children[run.ids[0]] = upper
        run.parent = upper
        run.start += count
        run.ids = run.ids[count:]
        run.sampled = [(call, start + count) for call, start in run.sampled]
        return upper


def _continues(run: Run, child: Run) -> bool:
    """Whether the same calls sampled the child right after the run, or nobody sampled either."""
    size = len(run.ids)
    if len(run.sampled) != len(child.sampled):
        return False
    return sorted((call, start + size) for call, start in run.sampled) == sorted(child.sampled)


def _extended(ids: list[int], more: list[int]) -> list[int]:
    ids += more
    return ids


def common_prefix(ids: Sequence[int], other: Sequence[int], at: int) -> int:
    """How many of `ids` are the tokens of `other` from `at` on."""
    limit = min(len(ids), len(other) - at)
    if ids[:limit] == other[at : at + limit]:
        return limit
    same = 0
    while ids[same : same + _CHUNK] == other[at + same : at + same + _CHUNK]:
        same += _CHUNK
    while ids[same] == other[at + same]:
        same += 1
    return same
