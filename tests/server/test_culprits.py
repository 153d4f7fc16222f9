"""Which episodes of a batch make it fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from ajet_server.batches import culprits

Item = tuple[str, int]
Works = Callable[[Sequence[Item]], bool]


def owner(item: Item) -> str:
    return item[0]


def find_culprits(
    items: Sequence[Item], owner: Callable[[Item], str], works: Works, tries: int = 64
) -> list[Item]:
    async def ask(some: Sequence[Item]) -> bool:
        return works(some)

    return asyncio.run(culprits.find_culprits(items, owner, ask, tries))


OWNED = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 99)), unique=True, max_size=40)


@given(OWNED, st.data())
def test_items_that_fail_by_themselves_are_found_and_no_others(
    items: list[Item], data: st.DataObject
) -> None:
    bad = set(data.draw(st.lists(st.sampled_from(items), max_size=4) if items else st.just([])))

    def works(some: Sequence[Item]) -> bool:
        return not bad.intersection(some)

    assert set(find_culprits(items, owner, works)) == bad


@given(OWNED, st.integers(1, 8))
def test_what_is_left_works_and_an_owner_pays_only_for_what_is_its_own(
    items: list[Item], tries: int
) -> None:
    # No owner but "a" sends anything wrong: too many of its items at once.
    def works(some: Sequence[Item]) -> bool:
        return sum(item[0] == "a" for item in some) < 3

    left_out = find_culprits(items, owner, works, tries)
    assert works([item for item in items if item not in left_out])
    assert {item[0] for item in left_out} <= {"a"}
    assert bool(left_out) == (not works(items))


def test_attempts_are_bounded_for_each_owner() -> None:
    items = [(name, number) for name in "ab" for number in range(1000)]
    asked = 0

    def works(some: Sequence[Item]) -> bool:
        nonlocal asked
        asked += 1
        return not any(name == "a" and number % 2 for name, number in some)

    left_out = find_culprits(items, owner, works)
    assert works([item for item in items if item not in left_out])
    assert {name for name, _ in left_out} == {"a"}
    assert asked < 200


def test_items_that_work_when_they_are_tried_again_are_no_culprits() -> None:
    assert find_culprits([("a", 1), ("b", 2)], owner, lambda _: True) == []


def test_nothing_is_tried_twice() -> None:
    tried: list[tuple[Item, ...]] = []

    def works(some: Sequence[Item]) -> bool:
        tried.append(tuple(some))
        return ("a", 5) not in some

    assert find_culprits([("a", number) for number in range(16)], owner, works) == [("a", 5)]
    assert len(tried) == len(set(tried)) <= 10
