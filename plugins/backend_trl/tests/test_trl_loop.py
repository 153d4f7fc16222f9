"""Stepping a loop from outside, with a loop of our own."""

from __future__ import annotations

import pytest
from ajet_backend_trl.loop import StepLoop


class Looping:
    """Takes numbers as batches: negative ones raise, and multiples of ten restart it."""

    def __init__(self) -> None:
        self.loop: StepLoop[int] = StepLoop(self.train, lambda work: work % 10 != 0)
        self.seen: list[int] = []
        self.begun = 0

    def train(self, _: int) -> None:
        self.begun += 1
        while True:
            work = self.loop.take()
            if work == 7:
                return
            if work < 0:
                raise ValueError(f"no {work}")
            self.seen.append(work)


def test_one_loop_computes_batch_after_batch() -> None:
    looping = Looping()
    for work in (1, 2, 3):
        looping.loop.run(work)
        assert looping.seen[-1] == work
    assert looping.begun == 1
    looping.loop.close()


def test_a_batch_that_does_not_fit_begins_it_anew_and_is_computed_once() -> None:
    looping = Looping()
    for work in (1, 10, 2):
        looping.loop.run(work)
    assert looping.seen == [1, 10, 2]
    assert looping.begun == 2
    looping.loop.close()


def test_what_is_raised_in_it_is_raised_where_the_batch_came_from() -> None:
    looping = Looping()
    looping.loop.run(1)
    with pytest.raises(ValueError, match="no -1"):
        looping.loop.run(-1)
    looping.loop.run(2)
    assert looping.seen == [1, 2]
    looping.loop.close()


def test_a_loop_that_ends_by_itself_is_an_error() -> None:
    looping = Looping()
    with pytest.raises(RuntimeError, match="ended by itself"):
        looping.loop.run(7)
    looping.loop.run(1)
    assert looping.seen == [1]
    looping.loop.close()


def test_closing_one_that_never_began_does_nothing() -> None:
    Looping().loop.close()
