"""`run_episodes_until_all_complete` over real sockets, with threads and with tasks."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx2
import openai
import pytest

from agentjet.client import (
    AsyncSwarmClient,
    Episode,
    EpisodeFailure,
    EpisodeOutcome,
    EpisodeResult,
    RunnerReport,
    SwarmClient,
    Task,
)
from agentjet.client._episode import abort_cause
from ajet_core.errors import NotRollingError, RequestError

from .swarm_stub import SwarmStub, serve

pytestmark = pytest.mark.processes

Agent = Callable[[Task, Episode], Any]


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


def drive(kind: str, url: str, tasks: list[Any], agent: Agent, **options: Any) -> RunnerReport:
    """Run an agent with either client; a plain agent becomes an async one for the async client."""
    if kind == "sync":
        with SwarmClient(url, "token") as client:
            return client.run_episodes_until_all_complete(tasks, agent, **options)

    async def as_async(task: Task, episode: Episode) -> Any:
        result = agent(task, episode)
        return await result if inspect.isawaitable(result) else result

    async def run() -> RunnerReport:
        async with AsyncSwarmClient(url, "token") as client:
            return await client.run_episodes_until_all_complete(tasks, as_async, **options)

    return asyncio.run(run())


def test_every_task_gets_its_episodes(kind: str, url: str, stub: SwarmStub) -> None:
    def agent(task: Task, episode: Episode) -> Any:
        if task.payload is None:
            return 0.5
        return EpisodeOutcome(reward=task.payload, components={"x": 1.0})

    seen: list[Any] = []
    report = drive(
        kind, url, ["a", Task("b", payload=2.0)], agent, episodes_per_task=3, on_result=seen.append
    )
    assert sorted(r.task.id for r in report.outcomes) == ["a"] * 3 + ["b"] * 3
    assert report.failures == []
    assert report.reward_mean == pytest.approx(1.25)
    assert seen == report.outcomes
    assert [o["reward"] for o in stub.by_task("b")] == [2.0] * 3


def test_no_tasks_are_no_work(kind: str, url: str) -> None:
    report = drive(kind, url, [], lambda *_: 1.0)
    assert (report.outcomes, report.failures, report.reward_mean) == ([], [], None)
    assert str(report).startswith("0 episodes ended in ")


def test_no_more_episodes_are_open_than_asked_for(kind: str, url: str, stub: SwarmStub) -> None:
    drive(kind, url, ["a"], lambda *_: 1.0, episodes_per_task=12, concurrency=3)
    assert len(stub.outcomes) == 12
    assert stub.most_open <= 3


def test_as_many_episodes_run_as_the_server_wants(kind: str, url: str, stub: SwarmStub) -> None:
    stub.paces = itertools.repeat(80)
    opened, opened_here = threading.Barrier(80), asyncio.Barrier(80)

    async def together() -> float:
        async with asyncio.timeout(30):
            await opened_here.wait()
        return 1.0

    def agent(task: Task, episode: Episode) -> Any:
        if kind == "async":
            return together()
        opened.wait(30)
        return 1.0

    drive(kind, url, ["a"], agent, episodes_per_task=160)
    assert len(stub.outcomes) == 160
    assert stub.most_open == 80


def test_no_job_is_lost_when_the_server_wants_fewer_episodes(
    kind: str, url: str, stub: SwarmStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentjet.client._runner._USUAL_EPISODES", 1)
    stub.paces = itertools.cycle([5, 4, 1, 2])
    report = drive(kind, url, ["a"], lambda *_: 1.0, episodes_per_task=300, lease_seconds=1)
    assert len(report.outcomes) == 300
    assert stub.most_open <= 5


def test_an_agent_that_is_cancelled_ends_the_runner(url: str) -> None:
    def agent(task: Task, episode: Episode) -> float:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        drive("async", url, ["a", "b"], agent)


def test_a_failing_task_leaves_the_others_alone(kind: str, url: str, stub: SwarmStub) -> None:
    def agent(task: Task, episode: Episode) -> float:
        if task.id == "bad":
            raise ValueError(f"cannot do it with {episode.api_key}")
        return 1.0

    report = drive(kind, url, ["good", "bad"], agent, episodes_per_task=2, retries=1)
    assert [r.task.id for r in report.outcomes] == ["good"] * 2
    assert len(report.failures) == 2
    failure = report.failures[0]
    assert (failure.task.id, failure.attempts) == ("bad", 2)
    assert "ValueError: cannot do it with ***" in failure.traceback
    assert 'raise ValueError(f"cannot do it' in failure.traceback
    said = str(report)
    assert said.startswith("2 episodes ended in ")
    assert "with a mean reward of 1; 2 failed, the first (task 'bad') because of" in said
    assert said.endswith("ValueError: cannot do it with ***")
    aborted = stub.by_task("bad")
    assert [o["state"] for o in aborted] == ["aborted"] * 4
    assert {o["reason"].splitlines()[0] for o in aborted} == {"ValueError: cannot do it with ***"}
    assert not any("key-of" in o["reason"] for o in aborted)


def test_a_second_attempt_may_succeed(kind: str, url: str, stub: SwarmStub) -> None:
    tried: list[str] = []

    def agent(task: Task, episode: Episode) -> float:
        tried.append(episode.episode_id)
        if len(tried) == 1:
            raise RuntimeError("once")
        return 1.0

    seen: list[EpisodeResult | EpisodeFailure] = []
    report = drive(kind, url, ["a"], agent, on_result=seen.append)
    assert [r.episode.episode_id for r in report.outcomes] == tried[1:]
    assert seen == report.outcomes


def test_without_retries_the_first_failure_stands(kind: str, url: str) -> None:
    def agent(*_: Any) -> float:
        raise RuntimeError("always")

    report = drive(kind, url, ["a"], agent, retries=0)
    assert [f.attempts for f in report.failures] == [1]


@pytest.mark.parametrize("value", [None, "1.0", float("nan")])
def test_a_return_value_that_is_no_reward_fails_the_episode(
    kind: str, url: str, stub: SwarmStub, value: Any
) -> None:
    report = drive(kind, url, ["a"], lambda *_: value, retries=0)
    assert len(report.failures) == 1
    assert [o["state"] for o in stub.by_task("a")] == ["aborted"]


def test_what_concerns_all_episodes_ends_the_run(kind: str, url: str, stub: SwarmStub) -> None:
    stub.refuse = {"type": "not_rolling", "message": "no run", "status": 503}
    with pytest.raises(NotRollingError, match="no run"):
        drive(kind, url, ["a", "b"], lambda *_: 1.0)


def test_what_concerns_one_task_is_its_failure(kind: str, url: str, stub: SwarmStub) -> None:
    stub.refuse = {"type": "episode_error", "message": "quarantined", "status": 409}
    report = drive(kind, url, ["a"], lambda *_: 1.0)
    assert [f.error.args[0] for f in report.failures] == ["quarantined"]


@pytest.mark.parametrize("options", [{"concurrency": 0}, {"episodes_per_task": 0}])
def test_impossible_numbers_are_refused(kind: str, url: str, options: dict[str, int]) -> None:
    with pytest.raises(RequestError, match="must be at least 1"):
        drive(kind, url, ["a"], lambda *_: 1.0, **options)


def test_leases_of_long_agents_are_renewed(kind: str, url: str, stub: SwarmStub) -> None:
    def agent(*_: Any) -> Any:
        if kind == "async":
            return asyncio.to_thread(wait)
        return wait()

    def wait() -> float:
        return float(stub.beaten.wait(20))

    report = drive(kind, url, ["a"], agent, lease_seconds=1)
    assert report.reward_mean == 1.0
    assert stub.beats["ep-0"] >= 1


def test_an_interrupt_aborts_what_is_open(url: str, stub: SwarmStub) -> None:
    release = threading.Event()
    entered = threading.Semaphore(0)

    def agent(task: Task, episode: Episode) -> float:
        if task.id == "first":
            return 1.0
        entered.release()
        release.wait(20)
        return 1.0

    def interrupt(result: object) -> None:
        # Claimed on the server is not enough: an episode is open here once its agent runs.
        for _ in range(3):
            assert entered.acquire(timeout=20)
        raise KeyboardInterrupt

    with SwarmClient(url, "token") as client:
        with pytest.raises(KeyboardInterrupt):
            client.run_episodes_until_all_complete(
                ["first", "b", "c", "d"], agent, on_result=interrupt
            )
        release.set()
        states = [stub.outcomes[e]["state"] for e, t in stub.tasks.items() if t != "first"]
    assert states == ["aborted"] * 3


async def test_a_cancellation_aborts_what_is_open(url: str, stub: SwarmStub) -> None:
    entered = 0
    all_in = asyncio.Event()

    async def agent(*_: Any) -> float:
        nonlocal entered
        entered += 1
        if entered == 3:
            all_in.set()
        await asyncio.Event().wait()
        return 1.0

    async with AsyncSwarmClient(url, "token") as client:
        running = asyncio.create_task(
            client.run_episodes_until_all_complete(["a", "b", "c"], agent)
        )
        await all_in.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert [o["reason"] for o in stub.outcomes.values()] == ["CancelledError"] * 3


async def test_a_plain_function_is_refused_by_the_async_client(url: str) -> None:
    async with AsyncSwarmClient(url, "token") as client:
        report = await client.run_episodes_until_all_complete(
            ["a"],
            lambda *_: 1.0,  # type: ignore[arg-type]
            retries=0,
        )
    assert "not async" in str(report.failures[0].error)


def test_an_async_agent_is_refused_by_the_sync_client(url: str) -> None:
    class Awaitable:
        def __await__(self) -> Iterator[None]:
            yield

    with SwarmClient(url, "token") as client:
        report = client.run_episodes_until_all_complete(
            ["a"],
            lambda *_: Awaitable(),
            retries=0,
        )
    assert "AsyncSwarmClient" in str(report.failures[0].error)


REQUEST: Any = httpx2.Request("POST", "http://x")


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ValueError("no"), "error"),
        (TimeoutError("slow"), "timeout"),
        (openai.APITimeoutError(REQUEST), "timeout"),
        (httpx2.ReadTimeout("slow"), "timeout"),
        (
            openai.RateLimitError(
                "many",
                response=httpx2.Response(429, request=REQUEST),
                body=None,
            ),
            "rate_limit",
        ),
        (asyncio.CancelledError(), "cancelled"),
        (KeyboardInterrupt(), "cancelled"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_failures_are_told_apart(error: BaseException, cause: str) -> None:
    assert abort_cause(error) == cause


def test_the_last_attempt_of_a_job_says_that_nobody_tries_it_again(
    kind: str, url: str, stub: SwarmStub
) -> None:
    def agent(task: Task, episode: Episode) -> float:
        raise ZeroDivisionError(f"in {task.id}")

    drive(kind, url, ["a"], agent, retries=2)
    assert [outcome["final"] for outcome in stub.outcomes.values()] == [False, False, True]
    for outcome in stub.outcomes.values():
        first, *where = outcome["reason"].splitlines()
        assert first == "ZeroDivisionError: in a"
        assert "in agent" in "".join(where)


@pytest.mark.parametrize("retries", [0, 1])
def test_a_lease_that_ended_with_the_last_attempt_is_given_up(
    kind: str, url: str, stub: SwarmStub, retries: int
) -> None:
    stub.leases_end = True
    report = drive(kind, url, ["a"], lambda task, episode: 1.0, retries=retries)
    assert len(report.failures) == 1
    finals = [outcome["final"] for outcome in stub.outcomes.values()]
    assert finals == [False] * retries + [True]


def test_a_reward_that_is_refused_with_the_last_attempt_is_given_up(
    kind: str, url: str, stub: SwarmStub
) -> None:
    drive(kind, url, ["a"], lambda task, episode: float("nan"), retries=1)
    assert [outcome["final"] for outcome in stub.outcomes.values()] == [False, True]


def test_a_failed_attempt_is_logged_with_task_episode_and_traceback(
    kind: str, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def agent(task: Task, episode: Episode) -> float:
        raise ZeroDivisionError(f"with {episode.api_key}")

    drive(kind, url, ["a"], agent, retries=0)
    (record,) = [r for r in caplog.records if r.name == "ajet.client"]
    text = record.getMessage()
    assert "task 'a', episode ep-0, attempt 1 of 1" in text
    assert "ZeroDivisionError" in text
    assert "in agent" in text
    assert "key-of" not in text


def test_the_traceback_of_a_failure_at_the_same_place_is_logged_once(
    kind: str, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def agent(task: Task, episode: Episode) -> float:
        if task.id == "c":
            raise LookupError("in c")
        raise ValueError(f"in {task.id}")

    caplog.set_level("INFO", "ajet.client")
    report = drive(kind, url, ["a", "b", "c"], agent, retries=1)
    texts = [r.getMessage() for r in caplog.records if r.name == "ajet.client"]
    assert len(texts) == 6
    assert sum("Traceback" in text for text in texts) == 2
    assert all("Error: in " in text for text in texts)
    assert all("Traceback" in failure.traceback for failure in report.failures)


def test_of_alike_failures_that_are_retried_few_are_warnings(
    kind: str, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def agent(task: Task, episode: Episode) -> float:
        raise ValueError("always")

    drive(kind, url, ["a"], agent, retries=11, concurrency=1)
    warnings = [r.getMessage() for r in caplog.records if r.name == "ajet.client"]
    assert [re.findall(r"attempt (\d+) of 12|failure (\d+) of", text) for text in warnings] == [
        [("1", "")],
        [("10", ""), ("", "10")],
        [("12", ""), ("", "12")],
    ]


def test_a_second_run_does_what_the_first_one_left(kind: str, url: str, stub: SwarmStub) -> None:
    broken = {"b"}

    def agent(task: Task, episode: Episode) -> float:
        if task.id in broken:
            raise ValueError(task.id)
        return 1.0

    drive(kind, url, ["a", "b", "c"], agent, episodes_per_task=2, retries=0)
    broken.clear()
    before = set(stub.tasks)
    report = drive(kind, url, ["a", "b", "c", "d"], agent, episodes_per_task=2, resume=True)
    assert sorted(r.task.id for r in report.outcomes) == ["b", "b", "d", "d"]
    assert sorted(stub.tasks[e] for e in set(stub.tasks) - before) == ["b", "b", "d", "d"]
    assert drive(kind, url, ["a", "b"], agent, episodes_per_task=2, resume=True).outcomes == []


def test_what_is_left_of_a_dataset(url: str) -> None:
    with SwarmClient(url, "token") as client:
        client.end_episode(client.begin_episode("a"), 1.0)
        tasks: list[str | Task] = ["a", Task("b", group="b@2")]
        found = client.resume(tasks)
        assert [task.id for task in found.finished] == ["a"]
        assert found.remaining == [(Task("b", group="b@2"), 1)]
        assert [lacking for _, lacking in client.resume(tasks, episodes_per_task=3).remaining] == [
            2,
            3,
        ]
        assert client.resume(["a", "a"]).remaining == [(Task("a"), 1)]
        with pytest.raises(RequestError, match="at least 1"):
            client.resume(tasks, episodes_per_task=0)


def test_one_beat_may_be_for_more_episodes_than_a_request_holds(url: str, stub: SwarmStub) -> None:
    with SwarmClient(url, "token") as client:
        episode = client.begin_episode("a")
        many = [replace(episode, episode_id=f"e{n}") for n in range(2500)]
        assert client.heartbeats(many) == {}
    assert sum(stub.beats.values()) == 2500


def test_an_agent_that_takes_too_long_is_given_up_and_the_others_go_on(
    kind: str, url: str, stub: SwarmStub
) -> None:
    released = threading.Event()

    async def hangs_in_a_task(task: Task, episode: Episode) -> float:
        if task.id == "slow":
            await asyncio.Event().wait()
        return 1.0

    def hangs_in_a_thread(task: Task, episode: Episode) -> float:
        if task.id == "slow":
            released.wait()
        return 1.0

    agent = hangs_in_a_thread if kind == "sync" else hangs_in_a_task
    try:
        report = drive(
            kind,
            url,
            ["slow", "a", "b"],
            agent,
            concurrency=1,
            retries=0,
            episode_timeout=0.2,
            lease_seconds=1.0,
        )
    finally:
        released.set()
    assert [result.task.id for result in report.outcomes] == ["a", "b"]
    (failure,) = report.failures
    assert isinstance(failure.error, TimeoutError)
    assert "did not finish within 0.2 s" in str(failure.error)
    outcome = next(o for e, o in stub.outcomes.items() if stub.tasks[e] == "slow")
    assert (outcome["cause"], outcome["final"]) == ("timeout", True)
    if kind == "sync":
        assert "released.wait()" in failure.traceback


def test_first_claims_follow_the_order_of_the_tasks_if_the_server_wants_it(
    kind: str, url: str, stub: SwarmStub
) -> None:
    stub.in_order = True
    tasks = [str(number) for number in range(12)]
    report = drive(kind, url, tasks, lambda *_: 1.0, episodes_per_task=3, concurrency=16)
    assert len(report.outcomes) == 36
    assert stub.overtaken == []


def test_otherwise_a_claim_that_waits_holds_up_no_other(
    kind: str, url: str, stub: SwarmStub
) -> None:
    stub.held = "0"
    report = drive(kind, url, ["0", "1", "2"], lambda *_: 1.0, concurrency=3)
    assert len(report.outcomes) == 3
    assert stub.overtaken


def test_a_failed_attempt_is_repeated_before_other_tasks(
    kind: str, url: str, stub: SwarmStub
) -> None:
    tried: list[str] = []

    def agent(task: Task, episode: Episode) -> float:
        tried.append(task.id)
        if tried == ["a"]:
            raise RuntimeError("once")
        return 1.0

    drive(kind, url, ["a", "b", "c"], agent, concurrency=1)
    assert tried == ["a", "a", "b", "c"]
