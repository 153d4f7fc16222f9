"""Rewards of all episodes of a task together, with threads and with tasks."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentjet.client import Episode, Task
from agentjet.client._groups import Groups
from agentjet.client._runner import Job, make_jobs
from ajet_core.errors import RequestError

from .swarm_stub import SwarmStub, serve
from .test_runner import drive

pytestmark = pytest.mark.processes


@pytest.fixture
def stub() -> SwarmStub:
    return SwarmStub()


@pytest.fixture
def url(stub: SwarmStub) -> Iterator[str]:
    with serve(stub.app) as url:
        yield url


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def ranks(task: Task, results: Sequence[Any]) -> list[float]:
    """Reward each result by its place among all."""
    order = sorted(results)
    return [order.index(result) / (len(results) - 1) for result in results]


class Numbers:
    """An agent whose results are a different number for each episode of a task."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next: dict[str, Iterator[int]] = {}

    def __call__(self, task: Task, episode: Episode) -> int:
        with self._lock:
            return next(self._next.setdefault(task.id, itertools.count()))


@pytest.mark.parametrize("coroutine", [False, True])
def test_episodes_are_rewarded_by_their_siblings(
    kind: str, url: str, stub: SwarmStub, coroutine: bool
) -> None:
    if coroutine and kind == "sync":
        pytest.skip("threads have no event loop")

    async def later(task: Task, results: Sequence[Any]) -> list[float]:
        return ranks(task, results)

    report = drive(
        kind,
        url,
        ["a", "b", "c"],
        Numbers(),
        episodes_per_task=4,
        concurrency=5,
        group_reward=later if coroutine else ranks,
    )
    assert not report.failures
    for task in "abc":
        rewards = sorted(outcome["reward"] for outcome in stub.by_task(task))
        assert rewards == pytest.approx([0, 1 / 3, 2 / 3, 1])


def test_siblings_wait_for_an_episode_that_is_attempted_again(
    kind: str, url: str, stub: SwarmStub
) -> None:
    numbers, sizes, failed = Numbers(), [], threading.Event()

    def agent(task: Task, episode: Episode) -> int:
        if not failed.is_set():
            failed.set()
            raise ValueError("the first attempt")
        return numbers(task, episode)

    def reward(task: Task, results: Sequence[Any]) -> list[float]:
        sizes.append(len(results))
        return [1.0] * len(results)

    report = drive(kind, url, ["a"], agent, episodes_per_task=3, group_reward=reward)
    assert (len(report.outcomes), report.failures, sizes) == (3, [], [3])


def test_what_is_given_up_is_left_out(kind: str, url: str, stub: SwarmStub) -> None:
    """Whether its siblings wait already or not."""
    sizes: list[int] = []

    class Agent(Numbers):
        def __call__(self, task: Task, episode: Episode) -> int:
            number = super().__call__(task, episode)
            if number in (0, 3):
                raise ValueError("broken")
            return number

    def reward(task: Task, results: Sequence[Any]) -> list[float]:
        sizes.append(len(results))
        return [float(result) for result in results]

    report = drive(
        kind, url, ["a", "b"], Agent(), episodes_per_task=4, retries=0, group_reward=reward
    )
    assert Counter(failure.task.id for failure in report.failures) == {"a": 2, "b": 2}
    assert sizes == [2, 2]
    assert sorted((r.task.id, r.outcome.reward) for r in report.outcomes) == [
        ("a", 1.0),
        ("a", 2.0),
        ("b", 1.0),
        ("b", 2.0),
    ]


@pytest.mark.parametrize(
    ("rewards", "error"),
    [
        ([1.0], "1 outcomes for 2 results"),
        (1.0, "returned float"),
        ("10", "returned str"),
        (["x", 1.0], "reward"),
    ],
)
def test_what_is_no_list_of_rewards_is_no_reward(
    kind: str, url: str, stub: SwarmStub, rewards: Any, error: str
) -> None:
    report = drive(
        kind,
        url,
        ["a"],
        Numbers(),
        episodes_per_task=2,
        retries=0,
        group_reward=lambda task, results: rewards,
    )
    assert len(report.failures) == (1 if error == "reward" else 2)
    assert error in str(report.failures[0].error)


def test_a_group_whose_reward_fails_is_rolled_out_again(
    kind: str, url: str, stub: SwarmStub
) -> None:
    calls: list[int] = []

    def reward(task: Task, results: Sequence[Any]) -> list[float]:
        calls.append(len(results))
        if len(calls) == 1:
            raise RuntimeError("the judge is away")
        return [0.5] * len(results)

    report = drive(kind, url, ["a"], Numbers(), episodes_per_task=3, group_reward=reward)
    assert (len(report.outcomes), report.failures) == (3, [])
    # Those that were attempted again first wait for the others.
    assert calls == [3, 3]


def test_waiting_for_siblings_takes_no_time_of_the_episode(
    kind: str, url: str, stub: SwarmStub
) -> None:
    """One waits from the beginning, the other is given up by the limit, and its attempts too."""
    first = threading.Lock()

    def slow() -> Any:
        if kind == "sync":
            threading.Event().wait(2)
            return 1
        return asyncio.sleep(2, 1)

    def agent(task: Task, episode: Episode) -> Any:
        return 0 if first.acquire(blocking=False) else slow()

    report = drive(
        kind,
        url,
        ["a"],
        agent,
        episodes_per_task=2,
        retries=1,
        episode_timeout=0.4,
        group_reward=lambda task, results: [1.0] * len(results),
    )
    assert (len(report.outcomes), len(report.failures)) == (1, 1)
    assert isinstance(report.failures[0].error, TimeoutError)


def test_more_episodes_than_run_at_once_are_refused(kind: str, url: str) -> None:
    with pytest.raises(RequestError, match="all 4 episodes of a task at once"):
        drive(
            kind,
            url,
            ["a"],
            Numbers(),
            episodes_per_task=4,
            concurrency=3,
            group_reward=ranks,
        )


def test_a_runner_that_ends_early_leaves_no_thread_waiting(url: str, stub: SwarmStub) -> None:
    """The first episode waits for its sibling, whose agent ends the runner."""
    first = threading.Lock()

    def agent(task: Task, episode: Episode) -> int:
        if first.acquire(blocking=False):
            return 1
        raise SystemExit

    with pytest.raises(SystemExit):
        drive("sync", url, ["a"], agent, episodes_per_task=2, group_reward=ranks)
    for thread in threading.enumerate():
        if thread.name.startswith("ajet-agent"):
            thread.join(30)
            assert not thread.is_alive()


# --- the bookkeeping ------------------------------------------------------------------------------

STEPS = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["join", "again", "give up"])))


@given(STEPS)
def test_a_group_is_complete_once_all_that_remain_have_results(
    steps: list[tuple[int, str]],
) -> None:
    """Each step happens to a job that may still have it; the model is a few sets."""
    jobs: list[Job] = make_jobs([(Task("a"), 4), (Task("b"), 2)])
    groups = Groups(jobs)
    open_, ended, gone = set(range(6)), set[int](), set[int]()
    results: dict[int, int] = {}
    futures: dict[int, Future[Any]] = {}
    for number, (at, step) in enumerate(steps):
        job = jobs[at]
        if at not in open_ or (at in futures and step == "join"):
            continue
        if step == "join":
            results[at] = number
            futures[at], complete = groups.join(job, number)
        else:
            if at in futures:
                continue
            complete = groups.failed(job, given_up=step == "give up")
            if step == "give up":
                open_.discard(at)
                gone.add(at)
        siblings = [i for i in range(6) if jobs[i].turn == job.turn and i not in gone]
        lacking = [i for i in siblings if i not in futures and i not in ended]
        due = not lacking and any(i in futures for i in siblings)
        assert (complete is not None) == due
        if complete is not None:
            assert list(complete.results) == [results[i] for i in siblings]
            complete.outcomes([float(value) for value in complete.results])
            for i in siblings:
                if i in futures:
                    assert futures.pop(i).result(timeout=0) == results[i]
                    ended.add(i)
                    open_.discard(i)
