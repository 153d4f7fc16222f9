"""Errors, retries, and what must never be shown."""

from __future__ import annotations

import random

import httpx2
import pytest

from agentjet.client import Episode
from agentjet.client._wire import DEFAULT_RETRIES, Backoff
from ajet_core import errors
from ajet_core.errors import (
    AjetError,
    ConfigError,
    ServerUnreachableError,
    StoreUnavailableError,
    VersionError,
)
from ajet_core.protocol import EpisodeGrant
from tests.support.clients import (
    GRANT,
    KEY,
    TOKEN,
    URL,
    Clock,
    MakeFace,
    Script,
    episode_status,
    error,
    server_status,
)

EPISODE = Episode.from_grant(EpisodeGrant.model_validate(GRANT))


def error_classes() -> list[type[AjetError]]:
    found: list[type[AjetError]] = []
    queue = [AjetError]
    while queue:
        cls = queue.pop()
        found.append(cls)
        queue += cls.__subclasses__()
    return [cls for cls in found if cls.__module__ == errors.__name__]


@pytest.mark.parametrize("cls", error_classes(), ids=lambda cls: cls.__name__)
async def test_errors_arrive_as_the_class_they_were(make: MakeFace, cls: type[AjetError]) -> None:
    script = Script().on("GET /v1/status", (cls.status, error(cls.type, "why", param="field")))
    with pytest.raises(AjetError) as caught:
        await make(script).call("status")
    assert type(caught.value) is cls
    assert (caught.value.message, caught.value.param) == ("why", "field")


async def test_a_proxys_page_becomes_an_error_with_its_beginning(make: MakeFace) -> None:
    page = httpx2.Response(418, text="<html>teapot" + "x" * 500)
    with pytest.raises(AjetError, match="HTTP 418") as caught:
        await make(Script().on("GET /v1/status", page)).call("status")
    assert "<html>teapot" in caught.value.message
    assert len(caught.value.message) < 300


async def test_an_answer_of_something_else_is_told(make: MakeFace) -> None:
    script = Script().on("GET /v1/protocol", httpx2.Response(200, text="hello"))
    with pytest.raises(AjetError, match="is this an agentjet server"):
        await make(script).call("status")


async def test_no_common_version(make: MakeFace) -> None:
    script = Script().on("GET /v1/protocol", (200, {"versions": ["2.0"], "server_version": "9"}))
    with pytest.raises(VersionError, match=r"supports protocol 2\.0, but this client 1\.\d"):
        await make(script).call("status")


async def test_safe_requests_are_repeated_after_lost_answers(make: MakeFace, clock: Clock) -> None:
    script = Script().on(
        "POST /v1/episodes/ep-1/end",
        httpx2.ReadError("reset"),
        httpx2.ConnectError("refused"),
        httpx2.Response(502, text="bad gateway"),
        (200, episode_status(state="ended", reward=1.0)),
    )
    assert (await make(script).call("end_episode", EPISODE, 1.0)).state == "ended"
    assert len(clock.sleeps) == 3
    assert all(0 <= s <= bound for s, bound in zip(clock.sleeps, (0.25, 0.5, 1.0), strict=True))


@pytest.mark.parametrize("lost", [httpx2.ReadError("reset"), httpx2.ConnectError("refused")])
async def test_a_claim_whose_answer_was_lost_is_the_same_claim_again(
    make: MakeFace, lost: httpx2.TransportError
) -> None:
    script = Script().on("POST /v1/episodes", lost, (200, GRANT), (200, GRANT))
    face = make(script)
    assert (await face.call("begin_episode", "task-1")).episode_id == "ep-1"
    first, second = script.bodies()
    assert first == second
    await face.call("begin_episode", "task-1")
    assert script.bodies()[2]["claim_id"] != first["claim_id"]


@pytest.mark.parametrize("status", [500, 502, 504])
async def test_a_claim_is_not_repeated_on_other_errors(make: MakeFace, status: int) -> None:
    script = Script().on("POST /v1/episodes", httpx2.Response(status, text="oops"), (200, GRANT))
    with pytest.raises(AjetError, match=f"HTTP {status}"):
        await make(script).call("begin_episode", "task-1")


async def test_unreachable_names_the_url_and_counts(make: MakeFace, clock: Clock) -> None:
    script = Script().on("GET /v1/status", httpx2.ConnectError("refused"))
    with pytest.raises(ServerUnreachableError, match=rf"{URL}.*tried 4 times.*refused"):
        await make(script, retries=3).call("status")
    assert len(script.requests) == 4
    assert len(clock.sleeps) == 3


async def test_a_server_that_is_not_there_is_told_early_and_waited_for(
    make: MakeFace, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    script = Script().on("GET /v1/protocol", httpx2.ConnectError("refused"))
    with pytest.raises(ServerUnreachableError, match="is the URL right"):
        await make(script).call("status")
    # It may be starting; but whoever has a wrong URL reads so after a second or two.
    assert len(clock.sleeps) == DEFAULT_RETRIES
    (told,) = [r for r in caplog.records if r.name == "ajet.client"]
    assert "no response from" in told.getMessage()
    assert "pass client=server.client" in told.getMessage()


async def test_retry_after_of_body_and_header_is_honoured(make: MakeFace, clock: Clock) -> None:
    script = Script().on(
        "GET /v1/status",
        (429, error("busy", retry_after=3.0)),
        httpx2.Response(503, headers={"retry-after": "7"}, text="later"),
        (200, server_status()),
    )
    await make(script).call("status")
    assert 3.0 <= clock.sleeps[0] <= 3.5
    assert 7.0 <= clock.sleeps[1] <= 8.0


async def test_errors_without_a_hint_are_not_repeated(make: MakeFace, clock: Clock) -> None:
    script = Script().on("GET /v1/status", (503, error("worker_error", "broken")))
    with pytest.raises(errors.WorkerError, match="broken"):
        await make(script).call("status")
    assert clock.sleeps == []


async def test_nothing_shows_token_or_key(make: MakeFace, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    broken = {**GRANT, "policy_version": "not a number"}
    script = Script().on("POST /v1/episodes", (200, broken))
    script.on("GET /v1/status", httpx2.ConnectError("refused"))
    face = make(script, retries=0)
    with pytest.raises(AjetError) as bad_answer:
        await face.call("begin_episode", "task-1")
    with pytest.raises(ServerUnreachableError) as unreachable:
        await face.call("status")
    shown = [repr(face.client), repr(EPISODE), str(bad_answer.value), str(unreachable.value)]
    shown += [repr(unreachable.value.__cause__), caplog.text]
    assert not [text for text in shown if TOKEN in text or KEY in text]


@pytest.mark.parametrize(
    "url",
    [
        "swarm.test:8642",
        "ftp://swarm.test",
        "http://",
        "http://u:secret@swarm.test",
        "http://x/?a=1",
    ],
)
async def test_urls_that_are_none_are_refused_at_once(make: MakeFace, url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(Script(), url=url)
    assert caught.value.param == "url"
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("url", [f"{URL}/", f"{URL}/v1", f"{URL}/v1/"])
async def test_urls_are_tidied(make: MakeFace, url: str) -> None:
    assert make(Script(), url=url).client.url == URL


def test_the_default_retries_outlast_a_server_that_is_started_again_twice() -> None:
    """Whatever the jitter: a gateway under load is back within ten seconds."""
    backoff = Backoff(rng=random.Random(1))
    for _ in range(200):
        assert sum(backoff.delay(failures) for failures in range(DEFAULT_RETRIES)) > 25.0


def test_backoff_stays_in_its_bounds_and_grows_to_its_cap() -> None:
    backoff = Backoff(base=0.5, cap=4.0, rng=random.Random(1))
    for failures in range(12):
        delays = [backoff.delay(failures) for _ in range(200)]
        bound = min(4.0, 0.5 * 2**failures)
        assert 0.5 * bound <= min(delays) < 0.6 * bound
        assert 0.9 * bound < max(delays) <= bound


def test_a_named_delay_is_never_cut_short() -> None:
    backoff = Backoff(rng=random.Random(1))
    delays = [backoff.honour(2.0, 0) for _ in range(200)]
    assert min(delays) >= 2.0
    assert max(delays) <= 2.2


@pytest.mark.parametrize(("type_", "status"), [("store_unavailable", 503), ("storage_full", 507)])
async def test_an_outcome_waits_for_the_servers_store(
    make: MakeFace, clock: Clock, type_: str, status: int
) -> None:
    away = (status, error(type_, "the database is away", retry_after=2.0))
    script = Script().on(
        "POST /v1/episodes/ep-1/end",
        *[away] * 50,
        (200, episode_status(state="ended", reward=1.0)),
    )
    face = make(script, retries=3)
    assert (await face.call("end_episode", EPISODE, 1.0)).state == "ended"
    assert len(clock.sleeps) == 50
    script = Script().on("POST /v1/episodes", *[away] * 50, (200, GRANT))
    assert (await make(script, retries=3).call("begin_episode", "task-1")).episode_id == "ep-1"


async def test_other_requests_do_not_wait_for_the_servers_store(make: MakeFace) -> None:
    away = (503, error("store_unavailable", "the database is away", retry_after=2.0))
    script = Script().on("POST /v1/run/resume", away).on("POST /v1/episodes/ep-1/abort", away)
    with pytest.raises(StoreUnavailableError):
        await make(script, retries=3).call("resume_engine")
    assert len(script.requests) == 4
    with pytest.raises(StoreUnavailableError):
        await make(script).call("abort_episode", EPISODE, "why", retries=0)
