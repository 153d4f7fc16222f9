"""Which replica answers."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_engines.served import Router

LONG = list(range(200))


def sent(router: Router, prompt: list[int]) -> int:
    replica = router.choose(prompt)
    assert replica is not None
    router.begin(replica, prompt)
    return replica


def test_prompts_without_a_common_beginning_go_where_least_is_done() -> None:
    router = Router(3)
    found = Counter(sent(router, [n, *LONG]) for n in range(9))
    assert found == {0: 3, 1: 3, 2: 3}


def test_a_prompt_goes_where_its_beginning_was() -> None:
    router = Router(3)
    home = sent(router, LONG)
    for n in range(5):
        sent(router, [n] * 300)
    assert router.choose([*LONG, 7, 7, 7]) == home
    # What differs within the first block has nothing in common with it.
    assert router.choose([9, *LONG]) == min(range(3), key=lambda r: router.load[r])


def test_a_cache_is_not_worth_a_long_wait() -> None:
    router = Router(2, imbalance=3)
    home = sent(router, LONG)
    for _ in range(3):
        assert sent(router, LONG) == home
    assert sent(router, LONG) != home


def test_the_longest_common_beginning_counts() -> None:
    router = Router(2)
    first = sent(router, LONG)
    other = [*LONG[:64], *([5] * 136)]
    router.begin(1 - first, other)
    assert router.choose([*other, 1]) == 1 - first


def test_what_is_down_is_passed_over_and_caches_that_were_emptied_are_forgotten() -> None:
    router = Router(2)
    home = sent(router, LONG)
    router.down.add(home)
    assert router.choose(LONG) == 1 - home
    router.down.add(1 - home)
    assert router.choose(LONG) is None
    router.down.clear()
    router.forget()
    assert router.choose(LONG) == 1 - home


def test_a_router_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Router(0)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 300), st.booleans()), max_size=200),
    st.integers(1, 4),
)
def test_no_replica_gets_far_busier_than_another(
    requests: list[tuple[int, int, bool]], replicas: int
) -> None:
    router = Router(replicas, imbalance=4)
    running: list[int] = []
    for first, length, ends in requests:
        running.append(sent(router, [first] * length))
        if ends:
            router.end(running.pop(0))
        assert sum(router.load) == len(running)
        assert min(router.load) >= 0
    if requests and not any(ends for *_, ends in requests):
        assert max(router.load) - min(router.load) <= 5
