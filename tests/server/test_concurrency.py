"""The number of open episodes that fits into the engine's cache is found."""

from __future__ import annotations

import heapq
import random
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet_core.timeline import Call
from ajet_server.admission.concurrency import CallUse, Concurrency
from tests.support.tiers import examples

FIRST, ANSWER = 400, 32


@dataclass(eq=False)
class Agent:
    """An episode of a simulation."""

    name: str
    turns: int
    length: int = FIRST
    last: Call | None = None


@dataclass
class World:
    """Agents with tools, and an engine that computes one call at a time.

    The cache holds whole conversations; the one that was used least recently goes first.

    :param room: tokens that the cache holds.
    """

    room: int
    concurrency: Concurrency
    tool_seconds: float = 1.0
    reports: bool = True
    caches: bool = True
    now: float = 0.0
    missed: int = 0
    computed: int = 0
    cache: OrderedDict[str, int] = field(default_factory=OrderedDict)
    tools: list[tuple[float, int, Agent]] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def run(self, episodes: int, seed: int = 0, version: int = 0) -> float:
        """Roll out episodes one after the other; returns how many ended per second."""
        rng = random.Random(seed)
        began, ended, started = self.now, 0, 0
        while ended < episodes:
            advised = self.concurrency.advised
            while advised is None or len(self.tools) < advised:
                if advised is None and len(self.tools) >= 256:
                    break
                started += 1
                agent = Agent(f"{seed} {started}", rng.randint(8, 16))
                heapq.heappush(self.tools, (self.now, started, agent))
            self.concurrency.bind()
            at, number, agent = heapq.heappop(self.tools)
            self.now = max(self.now, at)
            self.call(agent, version)
            agent.turns -= 1
            if agent.turns:
                agent.length += rng.randint(60, 200)
                due = self.now + rng.expovariate(1 / self.tool_seconds)
                heapq.heappush(self.tools, (due, number, agent))
            else:
                ended += 1
                self.concurrency.ended()
            self.counts.append(len(self.tools))
        return episodes / (self.now - began)

    def call(self, agent: Agent, version: int) -> None:
        found = self.cache.pop(agent.name, 0)
        base = agent.last
        if base is not None:
            self.missed += base.length - found
        self.computed += agent.length - found
        self.now += 0.01 + (agent.length - found) / 20_000
        agent.last = Call(
            call_id=f"{agent.name} {agent.turns}",
            episode_id=agent.name,
            index=0,
            suffix_ids=[1] * (agent.length - (base.length if base else 0)),
            sampled_ids=[2] * ANSWER,
            logprobs=[-1.0] * ANSWER,
            policy_versions=[version] * ANSWER,
            temperature=1.0,
            finish_reason="stop",
            base=base,
            shared=base.length if base else 0,
        )
        agent.length += ANSWER
        if self.caches:
            self.cache[agent.name] = agent.length
            while sum(self.cache.values()) > self.room:
                self.cache.popitem(last=False)
        cached = found if self.reports else None
        self.concurrency.called(CallUse.of(agent.last, cached), len(self.tools) + 1, self.now)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_limit_is_near_the_best(seed: int) -> None:
    best = max(World(30_000, Concurrency(number)).run(300, seed) for number in (12, 16, 20, 24, 32))
    world = World(30_000, Concurrency("auto"))
    world.run(300, seed)
    assert world.run(300, seed + 100) > 0.9 * best
    far_too_many = World(30_000, Concurrency(64)).run(300, seed)
    assert far_too_many < 0.8 * best


@pytest.mark.slow
def test_the_limit_falls_with_the_cache_and_rises_again() -> None:
    world = World(40_000, Concurrency("auto"), tool_seconds=0.2)
    world.run(400, 1)
    before = world.concurrency.limit
    world.room //= 2
    world.run(300, 2)
    halved = world.concurrency.limit
    world.room *= 2
    world.run(900, 3)
    assert before is not None
    assert halved is not None
    assert world.concurrency.limit is not None
    assert halved < 0.75 * before
    assert world.concurrency.limit > 1.2 * halved


@pytest.mark.slow
def test_slow_tools_are_worth_misses() -> None:
    world = World(30_000, Concurrency("auto"), tool_seconds=20.0)
    world.run(900, 1)
    few = World(30_000, Concurrency(20), tool_seconds=20.0).run(200, 2)
    assert world.run(300, 2) > 1.5 * few


@pytest.mark.parametrize("world", [{"reports": False}, {"caches": False}])
def test_an_engine_without_a_cache_of_prefixes_has_no_limit(world: dict[str, Any]) -> None:
    made = World(10_000, Concurrency("auto"), **world)
    made.run(100)
    assert made.concurrency.limit is None
    assert made.concurrency.advised is None


def test_more_are_advised_while_all_fit() -> None:
    world = World(10_000_000, Concurrency("auto"))
    world.run(400)
    assert world.concurrency.limit is None
    assert (world.concurrency.advised or 0) >= 128


@pytest.mark.slow
def test_misses_that_pass_do_not_lower_the_limit_for_good() -> None:
    world = World(40_000, Concurrency("auto"), tool_seconds=0.2)
    world.run(300, 1)
    world.caches = False
    world.run(300, 2)
    world.caches = True
    lowest = world.concurrency.limit
    world.run(1500, 3)
    assert lowest is not None
    assert (world.concurrency.limit or 0) > 2 * lowest


def test_it_is_not_given_up_because_of_a_start_with_far_too_many() -> None:
    world = World(10_000, Concurrency("auto"), tool_seconds=0.2)
    world.run(300, 1)
    best = max(World(10_000, Concurrency(number)).run(200, 2) for number in (4, 5, 6, 8))
    assert world.run(200, 2) > 0.85 * best


@settings(max_examples=examples(50))
@given(
    st.lists(
        st.tuples(st.integers(0, 5000), st.integers(0, 6000), st.integers(0, 300), st.floats(0, 5)),
        max_size=200,
    )
)
def test_whatever_is_reported_the_limit_is_a_number(
    calls: list[tuple[int, int, int, float]],
) -> None:
    concurrency, now, last = Concurrency("auto"), 0.0, None
    for number, (length, cached, open_episodes, seconds) in enumerate(calls):
        now += seconds
        last = Call(
            call_id=str(number),
            episode_id="e",
            index=number,
            suffix_ids=[1] * (length + 1),
            sampled_ids=[2],
            logprobs=[-1.0],
            policy_versions=[0],
            temperature=1.0,
            finish_reason="stop",
            base=last if number % 50 else None,
            shared=last.length if last is not None and number % 50 else 0,
        )
        concurrency.bind()
        concurrency.ended()
        concurrency.called(CallUse.of(last, cached if cached < 5900 else None), open_episodes, now)
        assert concurrency.limit is None or concurrency.limit >= 4
        assert concurrency.advised is None or concurrency.advised >= 4


def test_a_number_is_the_limit() -> None:
    concurrency = Concurrency(3)
    assert concurrency.has_room(2)
    assert not concurrency.has_room(3)
    assert Concurrency(None).has_room(10_000)
