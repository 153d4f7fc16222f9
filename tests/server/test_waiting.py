"""Who is next among claims that wait."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from ajet_core.interfaces import EpisodeRecord
from ajet_core.protocol import ClaimRequest
from ajet_server.admission.batching import BatchBuilder
from ajet_server.admission.waiting import Granted, Ticket, WaitingLine
from tests.support.batches import builder, episode


def ticket(group: str | None) -> Ticket:
    granted: asyncio.Future[Granted] = asyncio.get_running_loop().create_future()
    return Ticket(ClaimRequest(task_id=group or "eval"), "c", group, granted)


def line_of(*tickets: Ticket) -> WaitingLine:
    line = WaitingLine()
    for one in tickets:
        line.add(one)
    return line


def start(batch: BatchBuilder, *groups: str) -> list[EpisodeRecord]:
    records = [episode(group) for group in groups]
    for record in records:
        batch.opened(record)
    return records


async def test_a_claim_of_a_full_task_does_not_hold_up_those_behind_it() -> None:
    batch = builder(tasks=2)
    start(batch, "a", "a")
    full, other, later = ticket("a"), ticket("b"), ticket("c")
    line = line_of(full, other, later)
    assert line.next(batch) is other
    start(batch, "b")
    line.discard(other)
    assert line.next(batch) is None
    line.add(behind := ticket("b"))
    assert line.next(batch) is behind


async def test_claims_that_need_no_place_pass_those_that_do() -> None:
    batch = builder(tasks=1)
    start(batch, "a")
    free = ticket(None)
    assert line_of(ticket("b"), free).next(batch) is free


@pytest.mark.slow
@pytest.mark.parametrize("full_by", ["tasks", "episodes", "differing_tasks"])
@pytest.mark.parametrize("seed", range(20))
async def test_the_next_is_the_first_that_the_builder_would_not_send_away(
    full_by: str, seed: int
) -> None:
    rng = random.Random(seed)
    batch = builder(full_by, tasks=3, max_aborts_per_task=2)
    line = WaitingLine()
    running: list[EpisodeRecord] = []
    for _ in range(300):
        what = rng.random()
        if what < 0.5:
            line.add(ticket(rng.choice("abcdefg")))
        elif running:
            record = running.pop(rng.randrange(len(running)))
            if what < 0.6:
                batch.aborted(replace(record, state="aborted"))
            else:
                batch.ended(replace(record, state="ended", reward=rng.choice([0.0, 1.0])))
        if batch.is_full():
            batch.take()
        while True:
            expected = next((t for t in line if batch.may_begin(t.group or "")), None)
            assert line.next(batch) is expected
            if expected is None:
                break
            line.discard(expected)
            if batch.may_begin(expected.group or ""):
                running += start(batch, expected.group or "")
