"""Find the items that make a whole fail, by leaving some out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

_TRIES = 64


async def find_culprits(
    items: Sequence[T],
    owner: Callable[[T], Hashable],
    works: Callable[[Sequence[T]], Awaitable[bool]],
    tries: int = _TRIES,
) -> list[T]:
    """Find the items to leave out so that the rest works.

    Each owner's items are bisected separately, starting with owners whose items work without the
    others'. So no owner loses an item because of another's. After `tries` attempts, the rest of an
    owner's untried items are left out.

    :param tries: attempts for each owner, at least 1.
    :param works: whether some of the items work together, given in the order of `items`. The empty
        list works.
    :return: in the order of `items`; empty if all of them work together.
    """
    owned: dict[Hashable, list[int]] = {}
    for number, item in enumerate(items):
        owned.setdefault(owner(item), []).append(number)
    search = _Search(items, works)
    fails = [not await search.together(some) for some in owned.values()]
    kept: list[int] = []
    for _, numbers in sorted(zip(fails, owned.values(), strict=True), key=lambda pair: pair[0]):
        search.tries = tries
        kept = await search.with_some(kept, numbers)
    left = set(kept)
    return [item for number, item in enumerate(items) if number not in left]


@dataclass(slots=True)
class _Search(Generic[T]):
    """A search for items that work together.

    :ivar tries: attempts left for the present owner.
    """

    items: Sequence[T]
    works: Callable[[Sequence[T]], Awaitable[bool]]
    tries: int = 0
    _known: dict[tuple[int, ...], bool] = field(default_factory=dict)

    async def together(self, numbers: Sequence[int]) -> bool:
        """Return whether these items work together; results are cached."""
        some = tuple(sorted(numbers))
        if some not in self._known:
            self._known[some] = await self.works([self.items[number] for number in some])
        return self._known[some]

    async def with_some(self, kept: list[int], some: list[int]) -> list[int]:
        """Return `kept` and as many of `some` as work with it."""
        if not some or self.tries <= 0:
            return kept
        self.tries -= 1
        if await self.together([*kept, *some]):
            return [*kept, *some]
        if len(some) == 1:
            return kept
        half = len(some) // 2
        return await self.with_some(await self.with_some(kept, some[:half]), some[half:])
