"""Which items of a whole make it fail: found by leaving some out. Pure: no I/O, no time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

T = TypeVar("T")

_TRIES = 64


def find_culprits(
    items: Sequence[T],
    owner: Callable[[T], Hashable],
    works: Callable[[Sequence[T]], bool],
    tries: int = _TRIES,
) -> list[T]:
    """Items to leave out, so that the rest works.

    Each owner's items are bisected by themselves, those of owners whose items work alone first: what one owner
    sends never costs another owner an item. Those of one owner that were not tried yet after `tries`
    attempts are left out.

    :param tries: at least 1.
    :param works: whether some of the items work together, given in the order of `items`. No items work.
    :return: in the order of `items`; empty if all of them work together.
    """
    owned: dict[Hashable, list[int]] = {}
    for number, item in enumerate(items):
        owned.setdefault(owner(item), []).append(number)

    def together(numbers: Sequence[int]) -> bool:
        return works([items[number] for number in sorted(numbers)])

    kept: list[int] = []
    for numbers in sorted(owned.values(), key=lambda some: not together(some)):
        kept = _with(kept, numbers, together, [tries])
    left = set(kept)
    return [item for number, item in enumerate(items) if number not in left]


def _with(
    kept: list[int],
    some: list[int],
    together: Callable[[Sequence[int]], bool],
    tries: list[int],
) -> list[int]:
    """`kept`, and as many of `some` as work with it; `tries` holds the attempts that are left."""
    if not some or tries[0] <= 0:
        return kept
    tries[0] -= 1
    if together([*kept, *some]):
        return [*kept, *some]
    if len(some) == 1:
        return kept
    half = len(some) // 2
    return _with(_with(kept, some[:half], together, tries), some[half:], together, tries)
