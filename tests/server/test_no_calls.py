"""What a reward needs: an answered call, and no failure of the server after it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from agentjet import AsyncSwarmClient
from agentjet.client import EpisodeOutcome
from ajet_core.errors import EngineError
from ajet_core.interfaces import GenerateChunk, GenerateRequest
from ajet_core.protocol import RunConfig
from ajet_server.gateway.engine_gate import EngineGate
from ajet_server.gateway.formats.exchange import Session
from ajet_server.gateway.rendering.conversation import ConversationIndex
from ajet_server.processes.desk import Gateway
from ajet_testing.servers import CLIENT, TOKENS, Running, ServerFactory, error_of, key
from tests.support.served_processes import CONTROL, call, serving, start_run

SAYS = ["hello<|im_end|>"]
REPLIES = [
    {"prompt": "breaks", "says": SAYS, "error": "engine"},
    {"prompt": "buggy", "says": SAYS, "error": "bug"},
    {"prompt": "busy", "says": SAYS, "error": "busy"},
    {"prompt": "", "says": SAYS},
]


async def rolled(server: Running, **rollout: Any) -> None:
    await server.roll(rollout={"allow_no_calls": False, **rollout})


async def end(server: Running, grant: dict[str, Any], **fields: Any) -> httpx2.Response:
    url = f"/v1/episodes/{grant['episode_id']}/end"
    return await server.http.post(url, headers=CLIENT, json={"reward": 0.0, **fields})


async def status(server: Running, grant: dict[str, Any]) -> dict[str, Any]:
    answer = await server.http.get(f"/v1/episodes/{grant['episode_id']}", headers=CLIENT)
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize("kind", ["train", "eval"])
async def test_its_end_is_an_abort(server: Running, kind: str) -> None:
    await rolled(server)
    grant = await server.claim("a", kind=kind)
    refused = await end(server, grant)
    assert refused.status_code == 410
    assert "no model call of it was answered" in error_of(refused)["message"]
    found = await status(server, grant)
    assert (found["state"], found["cause"], found["reward"]) == ("aborted", "no_calls", None)
    # A repeated request changes nothing.
    again = await end(server, grant, allow_no_calls=True)
    assert again.status_code == 410
    assert (await server.service.store.counters())["aborted_no_calls"] == 1


async def test_a_call_that_no_client_saw_does_not_count(server: Running) -> None:
    await rolled(server)
    grant = await server.claim("a")
    episode = server.service.episodes.open[grant["episode_id"]]
    await server.chat(grant)
    (call,) = (await server.service.store.calls([grant["episode_id"]]))[grant["episode_id"]]
    assert episode.session.answered == {"": 1}
    assert call.finish_reason != "abort"
    assert (await end(server, grant)).status_code == 200


async def test_it_is_allowed_by_name(server: Running) -> None:
    await rolled(server)
    by_request, by_claim = await server.claim("a"), await server.claim("b", allow_no_calls=True)
    for grant, fields in ((by_request, {"allow_no_calls": True}), (by_claim, {})):
        answer = await end(server, grant, **fields)
        assert (answer.status_code, answer.json()["reward"]) == (200, 0.0)


async def test_the_run_allows_it(server: Running) -> None:
    await rolled(server, allow_no_calls=True)
    own, strict = await server.claim("a"), await server.claim("b", allow_no_calls=False)
    assert (await end(server, own)).status_code == 200
    assert (await end(server, strict)).status_code == 410


async def test_calls_before_a_restart_count(servers: ServerFactory) -> None:
    async with servers.running() as first:
        await rolled(first)
        called, silent = await first.claim("a"), await first.claim("b")
        await first.chat(called)
    async with servers.running() as second:
        assert (await end(second, called)).status_code == 200
        assert (await end(second, silent)).status_code == 410


async def test_runners_do_not_train_episodes_without_calls(server: Running) -> None:
    await rolled(server)
    async with AsyncSwarmClient(server.url, TOKENS.control) as client:

        async def agent(task: Any, episode: Any) -> Any:
            return EpisodeOutcome(reward=0.0, allow_no_calls=task.id == "nop")

        report = await client.run_episodes_until_all_complete(
            ["nop", "a"], agent, retries=0, concurrency=2
        )
    assert [result.task.id for result in report.outcomes] == ["nop"]
    (failure,) = report.failures
    assert failure.reason.startswith("EpisodeClosedError: ")
    assert "no model call of it was answered" in str(report)


def test_the_default_of_a_run_refuses_them(tmp_path: Path) -> None:
    config = RunConfig.model_validate({"model": {"path": str(tmp_path)}})
    assert config.rollout.allow_no_calls is None


async def failing(server: Running, **rollout: Any) -> dict[str, Any]:
    """Claim an episode whose engine fails the first time that it is asked for some texts."""
    await server.roll(
        rollout={"allow_no_calls": False, **rollout},
        engine={"replies": REPLIES, "vocab_size": 1024},
    )
    grant = await server.claim("a")
    assert (await server.chat(grant, "hello")).status_code == 200
    return grant


async def refused(server: Running, grant: dict[str, Any]) -> str:
    """The message of an end whose answer is 410."""
    answer = await end(server, grant)
    assert answer.status_code == 410
    found = await status(server, grant)
    assert (found["state"], found["cause"], found["reward"]) == ("aborted", "call_failed", None)
    message: str = error_of(answer)["message"]
    return message


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "code", "said"),
    [("it breaks", 503, "engine_error: the scripted engine"), ("it is buggy", 500, "internal")],
)
async def test_after_a_failure_of_the_engine_its_end_is_an_abort(
    server: Running, text: str, code: int, said: str, *, stream: bool
) -> None:
    grant = await failing(server)
    assert (await server.chat(grant, text, stream=stream)).status_code == code
    message = await refused(server, grant)
    assert "failed to answer its last model call" in message
    assert said in message


@pytest.mark.parametrize("stream", [False, True])
async def test_a_repeated_call_makes_up_for_a_failure(server: Running, *, stream: bool) -> None:
    grant = await failing(server)
    assert (await server.chat(grant, "it breaks")).status_code == 503
    assert (await server.chat(grant, "it breaks", stream=stream)).status_code == 200
    assert (await end(server, grant)).status_code == 200


async def test_a_call_that_began_before_a_failure_does_not_make_up_for_it(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant = await failing(server)
    original, entered, release = EngineGate.generate, asyncio.Event(), asyncio.Event()

    async def generate(self: EngineGate, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        if not entered.is_set():
            entered.set()
            await release.wait()
        async for chunk in original(self, request):
            yield chunk

    monkeypatch.setattr(EngineGate, "generate", generate)
    async with asyncio.TaskGroup() as group:
        slow = group.create_task(server.chat(grant, "slow"))
        await entered.wait()
        assert (await server.chat(grant, "it breaks")).status_code == 503
        release.set()
    assert slow.result().status_code == 200
    await refused(server, grant)


async def test_a_stream_that_breaks_is_a_failure(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant = await failing(server)
    original = EngineGate.generate

    async def generate(self: EngineGate, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        async for chunk in original(self, request):
            yield GenerateChunk(chunk.token_ids[:1], chunk.logprobs[:1], chunk.policy_version, None)
            raise EngineError("the engine is gone")

    monkeypatch.setattr(EngineGate, "generate", generate)
    answer = await server.chat(grant, "hello", stream=True)
    assert (answer.status_code, "the engine is gone" in answer.text) == (200, True)
    assert "engine_error: the engine is gone" in await refused(server, grant)


async def test_what_a_client_may_not_do_is_no_failure(server: Running) -> None:
    grant = await failing(server, max_calls=2)
    assert (await server.chat(grant, "hello", temperature="hot")).status_code == 400
    assert (await server.chat(grant, "busy")).status_code == 429
    assert (await server.chat(grant, "hello")).status_code == 200
    assert (await server.chat(grant, "hello")).status_code == 403
    assert (await end(server, grant)).status_code == 200


async def test_a_reward_after_a_failure_is_allowed_by_the_same_name(server: Running) -> None:
    grant = await failing(server)
    assert (await server.chat(grant, "it breaks")).status_code == 503
    assert (await end(server, grant, allow_no_calls=True)).status_code == 200


async def test_after_the_end_of_its_calls_its_key_is_refused(server: Running) -> None:
    grant = await failing(server)
    path = f"/v1/episodes/{grant['episode_id']}/end_calls"
    for _ in range(2):
        answer = await server.http.post(path, headers=CLIENT)
        assert (answer.status_code, answer.json()["state"], answer.json()["calls"]) == (
            200,
            "open",
            1,
        )
    late = await server.chat(grant, "hello")
    assert (late.status_code, "no more calls" in late.text) == (410, True)
    beat = await server.http.post(path.replace("end_calls", "heartbeat"), headers=CLIENT)
    assert beat.status_code == 200
    assert (await end(server, grant)).status_code == 200
    over = await server.http.post(path, headers=CLIENT)
    assert (over.status_code, error_of(over)["type"]) == (410, "episode_closed")


async def test_calls_that_run_at_the_end_of_calls_are_cancelled(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant = await failing(server)
    entered = asyncio.Event()

    async def generate(self: EngineGate, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        entered.set()
        await asyncio.Event().wait()
        yield GenerateChunk([], [], 0, "stop")

    monkeypatch.setattr(EngineGate, "generate", generate)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(server.chat(grant, "slow"))
        await entered.wait()
        path = f"/v1/episodes/{grant['episode_id']}/end_calls"
        assert (await server.http.post(path, headers=CLIENT)).status_code == 200
    assert running.result().status_code == 410
    # That is no failure of the server.
    assert (await end(server, grant)).status_code == 200


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")
async def test_gateway_processes_report_failures(model_dir: Path, tmp_path: Path) -> None:
    rules = {"allow_no_calls": False}
    async with serving(tmp_path / "run", model_dir, AJET_SERVER__PROCESSES="2") as (_, http):
        await start_run(http, model_dir, engine={"replies": REPLIES, "vocab_size": 1024})

        async def code(grant: dict[str, Any], text: str) -> int:
            body = {"model": "any", "messages": [{"role": "user", "content": text}]}
            answer = await http.post("/v1/chat/completions", json=body, headers=key(grant))
            return answer.status_code

        claims = [{"task_id": "a", **rules}, {"task_id": "a", **rules}]
        broken, mended = [await call(http, "POST", "/v1/episodes", body) for body in claims]
        assert [await code(broken, text) for text in ("hello", "one breaks")] == [200, 503]
        assert [await code(mended, text) for text in ("two breaks", "two breaks")] == [503, 200]
        await call(http, "POST", f"/v1/episodes/{mended['episode_id']}/end_calls")
        assert await code(mended, "hello") == 410
        kept, lost = [
            await http.post(
                f"/v1/episodes/{grant['episode_id']}/end", json={"reward": 0.0}, headers=CONTROL
            )
            for grant in (mended, broken)
        ]
    assert (kept.status_code, lost.status_code) == (200, 410)
    assert "failed to answer its last model call" in lost.text


@pytest.mark.parametrize("running", [0, 1])
def test_a_gateway_that_ends_during_a_call_has_failed_it(running: int) -> None:
    session = Session("e", ConversationIndex())
    elsewhere = SimpleNamespace(gateway="it", running=running)
    gateway: Any = SimpleNamespace(
        name="gateway process 2",
        report=None,
        _counted={},
        _elsewhere=lambda _: elsewhere,
        _service=SimpleNamespace(episodes=SimpleNamespace(open=[SimpleNamespace(session=session)])),
    )
    Gateway.leave(gateway)
    assert (elsewhere.gateway, elsewhere.running) == (None, 0)
    failure = "worker_died: gateway process 2 ended during a call"
    assert session.failure == (failure if running else "")


def test_a_gateway_that_connects_again_says_which_calls_have_failed() -> None:
    session = Session("e", ConversationIndex(), failure="worker_died: it seemed to have ended")
    episode = SimpleNamespace(session=session, calls_over=False, closing=asyncio.Lock())
    gateway: Any = SimpleNamespace(
        _other=lambda _: None,
        _take=lambda _: None,
        _service=SimpleNamespace(episodes=SimpleNamespace(open={"e": episode})),
    )
    for failure in ("", "engine_failed: no answer"):
        assert Gateway._take_again(gateway, "e", failure)
        assert session.failure == failure
    assert not Gateway._take_again(gateway, "another", "")
