"""A server that stops and returns: runners lose no task, and every long wait has a message."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from agentjet.client import AsyncSwarmClient, Episode, RunnerReport, SwarmClient, Task
from ajet_core.errors import (
    BatchStarvedError,
    DeadlineError,
    ServerUnreachableError,
    StateError,
    WorkerBootError,
)
from tests.support.clients import (
    GRANT,
    PROTOCOL,
    TOKEN,
    URL,
    Clock,
    MakeFace,
    Script,
    episode_status,
    error,
    server_status,
)

STARVED = {"code": "no_client", "message": "no client: 1 of 2 tasks", "seconds": 12, "stuck": False}
NO_PLACE = (503, error("not_rolling", "1 of 2 tasks are complete", retry_after=5.0))


class Flaky:
    """A server in memory, which is out of reach when it is first told that an episode is aborted.

    :ivar aborts: bodies of the aborts that it heard of.
    """

    def __init__(self) -> None:
        self.claims = 0
        self.aborts: list[dict[str, Any]] = []
        self.away = 1
        self._lock = threading.Lock()

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        with self._lock:
            return self._answer(request)

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        *_, episode_id, verb = request.url.path.split("/")
        if verb == "protocol":
            return httpx2.Response(200, json=PROTOCOL)
        if verb == "heartbeats":
            return httpx2.Response(200, json={"closed": {}})
        if verb == "pace":
            return httpx2.Response(200, json={"in_order": False})
        if verb == "episodes":
            self.claims += 1
            return httpx2.Response(200, json=GRANT | {"episode_id": f"ep-{self.claims}"})
        if verb == "abort":
            if self.away:
                self.away -= 1
                raise httpx2.ConnectError("refused")
            self.aborts.append(json.loads(request.content))
        state = {"abort": "aborted", "end": "ended"}[verb]
        return httpx2.Response(200, json=episode_status(episode_id=episode_id, state=state))


def run(kind: str, server: Flaky, agent: Callable[[int], float], retries: int) -> RunnerReport:
    """One task; the agent is told how often the server had been asked for an episode."""
    if kind == "sync":
        with SwarmClient(URL, TOKEN, transport=httpx2.MockTransport(server)) as client:
            return client.run_episodes_until_all_complete(
                ["a"], lambda _task, _episode: agent(server.claims), retries=retries
            )

    async def rolled(_task: Task, _episode: Episode) -> float:
        return agent(server.claims)

    async def run_async() -> RunnerReport:
        transport = httpx2.MockTransport(server)
        async with AsyncSwarmClient(URL, TOKEN, transport=transport) as client:
            return await client.run_episodes_until_all_complete(["a"], rolled, retries=retries)

    return asyncio.run(run_async())


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_an_attempt_that_an_outage_ended_is_not_counted(kind: str) -> None:
    def agent(claims: int) -> float:
        if claims <= 2:
            raise ConnectionError("the model does not answer")
        return 1.0

    server = Flaky()
    report = run(kind, server, agent, retries=1)
    assert (len(report.outcomes), report.failures) == (1, [])
    # The second failure is one, and the third attempt is the job's second.
    assert server.claims == 3


def test_the_server_hears_of_a_task_that_is_given_up_even_after_an_outage(kind: str) -> None:
    def agent(_: int) -> float:
        raise ValueError("no such tool")

    server = Flaky()
    report = run(kind, server, agent, retries=0)
    assert len(report.failures) == 1
    assert [abort["final"] for abort in server.aborts] == [True]


def test_no_heartbeat_is_left_to_a_closed_client() -> None:
    before = set(threading.enumerate())
    server = Flaky()
    server.away = 0
    run("sync", server, lambda _: 1.0, retries=0)
    left = [thread.name for thread in set(threading.enumerate()) - before]
    assert "ajet-heartbeat" not in left


class UnspeakableError(Exception):
    """An error that fails when its text is asked for."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_error_without_words_fails_its_episode_alone(kind: str) -> None:
    def agent(_: int) -> float:
        raise UnspeakableError

    found: list[RunnerReport] = []
    server = Flaky()
    server.away = 0
    thread = threading.Thread(
        target=lambda: found.append(run(kind, server, agent, retries=0)), daemon=True
    )
    thread.start()
    thread.join(20)
    assert [type(failure.error) for failure in found[0].failures] == [UnspeakableError]
    assert "UnspeakableError" in server.aborts[0]["reason"]


def test_a_fault_of_the_client_itself_ends_the_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(SwarmClient, "abort_episode", broken)
    raised: list[BaseException] = []

    def agent(_: int) -> float:
        raise ValueError("no such tool")

    def work() -> None:
        try:
            run("sync", Flaky(), agent, retries=0)
        except RuntimeError as error:
            raised.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    assert [str(error) for error in raised] == ["a defect"]


async def test_a_claim_that_waits_for_long_says_what_for(
    make: MakeFace, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    script = Script().on("POST /v1/episodes", *[NO_PLACE] * 40, (200, GRANT))
    await make(script).call("begin_episode", "a")
    told = [record.getMessage() for record in caplog.records]
    assert 2 <= len(told) <= clock.now / 60
    assert told[0].startswith("begin_episode('a') has waited 6")
    assert told[0].endswith("1 of 2 tasks are complete")


async def test_waiting_for_a_step_returns_when_it_is_trained(make: MakeFace) -> None:
    script = Script().on(
        "GET /v1/status",
        (200, server_status(step=3)),
        (200, server_status(state="BOOTING", step=2)),
        httpx2.ConnectError("killed"),
        (200, server_status(step=4)),
    )
    assert (await make(script).call("wait_for_step", 4)).step == 4


async def test_waiting_for_a_step_that_nobody_rolls_out_for_says_so(make: MakeFace) -> None:
    script = Script().on(
        "GET /v1/status", (200, server_status()), (200, server_status(findings=[STARVED]))
    )
    with pytest.raises(BatchStarvedError, match="step 4 lacks episodes: no client: 1 of 2 tasks"):
        await make(script).call("wait_for_step", 4)


async def test_waiting_for_a_step_of_a_run_that_ended_raises_why(make: MakeFace) -> None:
    offline = server_status(state="OFFLINE")
    script = Script().on("GET /v1/status", (200, offline))
    with pytest.raises(StateError, match="no run is active, and the last one ended at step 3"):
        await make(script).call("wait_for_step", 4)
    failed = {"error": {"type": "worker_boot_failed", "message": "no memory"}}
    script = Script().on("GET /v1/status", (200, offline | failed))
    with pytest.raises(WorkerBootError, match="no memory"):
        await make(script).call("wait_for_step", 4)


async def test_waiting_for_a_step_ends_in_time_and_says_what_for_meanwhile(
    make: MakeFace, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    paused = server_status(state="PAUSED", paused="the rewards fell")
    script = Script().on("GET /v1/status", (200, paused))
    with pytest.raises(DeadlineError, match="not trained within 90 s: the server is PAUSED"):
        await make(script).call("wait_for_step", 4, timeout=90)
    (told,) = caplog.records
    assert told.getMessage() == (
        "wait_for_step(4) has waited 60 s: the server is PAUSED at step 3: the rewards fell. "
        "Once that is fixed, run `ajet resume --url http://swarm.test`"
    )
    assert clock.now <= 90


def batch(ready: int) -> dict[str, object]:
    """A batch of two tasks."""
    return {
        "full_by": "tasks",
        "needed": 2,
        "ready": ready,
        "open_episodes": 0,
        "quarantined": 0,
    }


def rollout(training: int | None) -> dict[str, object]:
    """The status of synchronous rollouts."""
    return {"mode": "sync", "max_staleness": 0, "training_step": training}


FULL = server_status(batch=batch(2), rollout=rollout(None))
TRAINING = server_status(state="WEIGHT_SYNCING", batch=batch(0), rollout=rollout(4))


async def test_waiting_for_training_ends_with_the_step_of_the_full_batch(make: MakeFace) -> None:
    trained = server_status(step=4, batch=batch(2), rollout=rollout(5))
    script = Script().on("GET /v1/status", (200, FULL), (200, TRAINING), (200, trained))
    assert (await make(script).call("wait_for_training")).step == 4


async def test_waiting_for_training_counts_all_batches_that_are_full(make: MakeFace) -> None:
    first = server_status(batch=batch(4), rollout=rollout(4))
    later = [(200, server_status(step=step, rollout=rollout(step + 1))) for step in (4, 5, 6)]
    script = Script().on("GET /v1/status", (200, first), *later)
    assert (await make(script).call("wait_for_training")).step == 6


@pytest.mark.parametrize(
    "status",
    [
        server_status(batch=batch(1), rollout=rollout(None)),
        server_status(state="PAUSED", batch=batch(2), rollout=rollout(None)),
        server_status(state="OFFLINE"),
    ],
)
async def test_waiting_for_training_ends_at_once_if_nothing_will_be_trained(
    make: MakeFace, clock: Clock, status: dict[str, object]
) -> None:
    script = Script().on("GET /v1/status", (200, status))
    assert (await make(script).call("wait_for_training")).step == 3
    assert not clock.sleeps


async def test_waiting_for_training_survives_a_worker_and_ends_with_a_refused_batch(
    make: MakeFace,
) -> None:
    script = Script().on(
        "GET /v1/status",
        (200, TRAINING),
        (200, server_status(state="BOOTING", step=2)),
        (200, server_status(step=2, batch=batch(0), rollout=rollout(None))),
        (200, server_status(step=2, batch=batch(0), rollout=rollout(3))),
        (200, server_status(batch=batch(0), rollout=rollout(None))),
    )
    assert (await make(script).call("wait_for_training")).step == 3
    assert len(script.requests) == 6


async def test_waiting_for_training_raises_why_the_run_failed_or_its_time_is_over(
    make: MakeFace,
) -> None:
    failed = server_status(
        state="OFFLINE", error={"type": "worker_boot_failed", "message": "no memory"}
    )
    script = Script().on("GET /v1/status", (200, TRAINING), (200, failed))
    with pytest.raises(WorkerBootError, match="no memory"):
        await make(script).call("wait_for_training")
    script = Script().on("GET /v1/status", (200, TRAINING))
    with pytest.raises(DeadlineError, match="not trained within 9 s: the server is WEIGHT_SYNC"):
        await make(script).call("wait_for_training", timeout=9)


async def test_waiting_for_a_step_of_a_server_that_stays_away_ends(make: MakeFace) -> None:
    script = Script().on("GET /v1/status", httpx2.ConnectError("refused"))
    with pytest.raises(ServerUnreachableError):
        await make(script).call("wait_for_step", 4)


def silence(clock: Clock, seconds: float) -> Callable[[httpx2.Request], httpx2.Response]:
    """A server that takes a request and never answers it."""

    def answer(_: httpx2.Request) -> httpx2.Response:
        clock.sleep(seconds)
        raise httpx2.ReadTimeout("no response")

    return answer


@pytest.mark.parametrize(
    ("route", "method", "seconds"),
    [("start", "start_engine", "wait_seconds"), ("stop", "stop_engine", "timeout")],
)
async def test_a_server_that_is_silent_is_not_waited_for_again_and_again(
    make: MakeFace, clock: Clock, route: str, method: str, seconds: str
) -> None:
    script = Script().on(f"POST /v1/run/{route}", silence(clock, 100))
    with pytest.raises(DeadlineError, match="within 90 s"):
        await make(script).call(method, **{seconds: 90})
    assert len(script.requests) == 1


async def test_a_long_outage_is_in_the_log(
    make: MakeFace, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    script = Script().on("GET /v1/run", silence(clock, 30))
    with pytest.raises(ServerUnreachableError):
        await make(script).call("run_status")
    told = [record.getMessage() for record in caplog.records]
    assert len(told) >= 5
    assert all(text.startswith("GET /v1/run has waited ") for text in told)
    assert all("no response yet (ReadTimeout" in text for text in told)
