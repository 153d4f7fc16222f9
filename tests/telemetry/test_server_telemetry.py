"""What a server with telemetry sends to a collector."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from prometheus_client.parser import text_string_to_metric_families

from ajet_core.interfaces import GenerateChunk
from ajet_core.protocol import TraceParent
from ajet_server.gateway.formats.generation import Generation
from ajet_server.http import model_calls
from ajet_server.http.model_calls import completion_service
from ajet_testing.servers import CLIENT, CONTROL, Running, ServerFactory, key
from tests.support.otlp import Received, attributes, context, receiving

pytestmark = pytest.mark.processes

GROWING = {"ajet_uptime_seconds", "ajet_phase_seconds", "ajet_device_hours"}
"""Metrics that change while nothing happens."""
OTHER = TraceParent(bytes(range(16)), bytes(range(8)))


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Received]]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    with receiving() as (url, received):
        yield url, received


@pytest.fixture
async def traced(
    servers: ServerFactory, receiver: tuple[str, Received]
) -> AsyncIterator[tuple[Running, Received]]:
    url, received = receiver
    async with servers.running(telemetry={"enabled": True, "endpoint": url}) as server:
        await server.roll()
        yield server, received


async def chat(server: Running, grant: dict[str, Any], **headers: str) -> None:
    body = {"messages": [{"role": "user", "content": "secret words"}], "max_tokens": 4}
    answer = await server.http.post(
        "/v1/chat/completions", json={"model": "asked", **body}, headers={**key(grant), **headers}
    )
    assert answer.status_code == 200, answer.text


async def test_an_episode_is_one_trace(traced: tuple[Running, Received]) -> None:
    server, received = traced
    grant = await server.claim("a")
    await chat(server, grant)
    await chat(server, grant)
    await server.end(grant, 1.0)
    (episode,) = received.wait_for("invoke_agent")
    calls = received.wait_for("chat", 2)
    root = TraceParent.of_episode(grant["episode_id"])
    assert context(episode) == root
    assert episode.parent_span_id == b""
    assert {call.trace_id for call in calls} == {root.trace_id}
    assert {call.parent_span_id for call in calls} == {root.span_id}
    assert episode.start_time_unix_nano <= calls[0].start_time_unix_nano
    assert calls[-1].end_time_unix_nano <= episode.end_time_unix_nano
    call = calls[0]
    assert call.name == "chat asked"
    assert call.kind == Span.SPAN_KIND_SERVER
    found = attributes(call)
    stored = (await server.service.store.calls([grant["episode_id"]]))[grant["episode_id"]][0]
    waited = found.pop("ajet.seconds_to_engine")
    assert call.start_time_unix_nano / 1e9 + waited == pytest.approx(stored.created_at)
    assert found == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "agentjet",
        "gen_ai.conversation.id": grant["episode_id"],
        "gen_ai.request.model": "asked",
        "gen_ai.response.model": grant["model"],
        "gen_ai.request.temperature": 1.0,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.max_tokens": 4,
        "gen_ai.response.finish_reasons": [stored.finish_reason],
        "gen_ai.response.id": stored.call_id,
        "gen_ai.usage.input_tokens": stored.prompt_length,
        "gen_ai.usage.output_tokens": len(stored.sampled_ids),
        "ajet.policy_version": 0,
    }
    assert attributes(episode)["ajet.reward"] == 1.0
    (score,) = episode.events
    assert attributes(score)["gen_ai.evaluation.score.value"] == 1.0


async def test_a_step_is_linked_to_the_episodes_that_it_trained(
    traced: tuple[Running, Received],
) -> None:
    server, received = traced
    await server.batch()
    (step,) = received.wait_for("training_step")
    episodes = received.wait_for("invoke_agent", 4)
    assert {(one.trace_id, one.span_id) for one in step.links} == {
        (one.trace_id, one.span_id) for one in episodes
    }
    assert step.trace_id not in {one.trace_id for one in episodes}
    found = attributes(step)
    assert (found["ajet.step"], found["ajet.batch.episodes"]) == (1, 4)
    parts = [received.wait_for(name) for name in ("prepare", "train", "publish", "load")]
    # `train` is the beginning of two names.
    spans = [next(one for one in part if one.parent_span_id == step.span_id) for part in parts]
    assert {one.trace_id for one in spans} == {step.trace_id}
    ends = [one.end_time_unix_nano for one in spans]
    assert ends == sorted(ends)
    assert ends[-1] <= step.end_time_unix_nano


async def test_a_span_of_the_trace_of_the_episode_is_the_parent_of_a_call(
    traced: tuple[Running, Received],
) -> None:
    server, received = traced
    grant = await server.claim("a")
    mine = TraceParent(TraceParent.of_episode(grant["episode_id"]).trace_id, b"12345678")
    await chat(server, grant, traceparent=str(mine))
    (call,) = received.wait_for("chat")
    assert (call.trace_id, call.parent_span_id) == (mine.trace_id, mine.span_id)
    assert not call.links


async def test_a_span_of_another_trace_is_linked(traced: tuple[Running, Received]) -> None:
    server, received = traced
    grant = await server.claim("a")
    await chat(server, grant, traceparent=str(OTHER))
    (call,) = received.wait_for("chat")
    root = TraceParent.of_episode(grant["episode_id"])
    assert (call.trace_id, call.parent_span_id) == (root.trace_id, root.span_id)
    assert [context(link) for link in call.links] == [OTHER]


async def test_a_malformed_header_is_ignored(traced: tuple[Running, Received]) -> None:
    server, received = traced
    grant = await server.claim("a")
    await chat(server, grant, traceparent="00-zz-zz-01")
    (call,) = received.wait_for("chat")
    assert call.parent_span_id == TraceParent.of_episode(grant["episode_id"]).span_id
    assert not call.links


async def test_a_claim_belongs_to_the_trace_of_its_client(
    traced: tuple[Running, Received],
) -> None:
    server, received = traced
    grant = await claim_traced(server, OTHER)
    (claim,) = received.wait_for("claim")
    assert (claim.trace_id, claim.parent_span_id) == (OTHER.trace_id, OTHER.span_id)
    assert [context(one) for one in claim.links] == [TraceParent.of_episode(grant["episode_id"])]


async def claim_traced(server: Running, parent: TraceParent) -> dict[str, Any]:
    headers = {**CLIENT, "traceparent": str(parent)}
    answer = await server.http.post("/v1/episodes", headers=headers, json={"task_id": "a"})
    grant: dict[str, Any] = answer.json()
    return grant


async def test_neither_messages_nor_keys_are_exported(traced: tuple[Running, Received]) -> None:
    server, received = traced
    grant = await server.claim("a")
    await chat(server, grant)
    logging.getLogger("ajet.server").warning("a key: %s", grant["api_key"])
    await server.end(grant, 1.0)
    received.wait_for("invoke_agent")
    received.wait_for("chat")
    wait_for_log(received, "a key: ")
    everything = b"".join(received.bodies)
    assert b"secret words" not in everything
    for secret in (grant["api_key"], *(header["authorization"] for header in (CONTROL, CLIENT))):
        assert secret.removeprefix("Bearer ").encode() not in everything


async def test_messages_are_exported_on_request(
    servers: ServerFactory, receiver: tuple[str, Received]
) -> None:
    url, received = receiver
    telemetry = {"enabled": True, "endpoint": url, "content": True}
    async with servers.running(telemetry=telemetry) as server:
        await server.roll()
        await chat(server, await server.claim("a"))
        found = attributes(received.wait_for("chat")[0])
    (message,) = json.loads(found["gen_ai.input.messages"])
    assert message == {"role": "user", "parts": [{"type": "text", "content": "secret words"}]}
    (answer,) = json.loads(found["gen_ai.output.messages"])
    assert answer["role"] == "assistant"
    assert answer["finish_reason"] == found["gen_ai.response.finish_reasons"][0]


async def test_episodes_outside_the_sample_are_not_exported(
    servers: ServerFactory, receiver: tuple[str, Received]
) -> None:
    url, received = receiver
    telemetry = {"enabled": True, "endpoint": url, "sample_ratio": 0.0}
    async with servers.running(telemetry=telemetry) as server:
        await server.roll()
        await server.batch()
        (step,) = received.wait_for("training_step")
    assert not step.links
    assert not [span for name in ("chat", "invoke") for span in received.named(name)]


async def test_metrics_are_those_of_prometheus(traced: tuple[Running, Received]) -> None:
    server, received = traced
    await server.batch()
    server.service.telemetry.status(
        await server.service.status(), await server.service.engine_metrics()
    )
    text = (await server.http.get("/metrics", headers=CONTROL)).text
    wanted = {
        family.name: {tuple(sorted(s.labels.items())): s.value for s in family.samples}
        for family in text_string_to_metric_families(text)
        if family.samples and family.name not in GROWING
    }
    assert wanted["ajet_calls"] == {(): 4.0}
    got: dict[str, dict[Any, float]] = {}

    def complete() -> bool:
        for metric in received.metrics:
            points = (metric.sum if metric.HasField("sum") else metric.gauge).data_points
            got[metric.name] = {
                tuple(sorted(attributes(point).items())): point.as_double for point in points
            }
        return got.get("ajet_calls") == {(): 4.0}

    received.wait_until(complete)
    assert {name for name in got if name not in GROWING} == {*wanted}
    assert {name: got[name] for name in wanted} == wanted
    assert {*got} >= GROWING


def wait_for_log(received: Received, text: str) -> Any:
    def matching() -> list[Any]:
        return [one for one in received.logs if text in one.body.string_value]

    received.wait_until(matching)
    return matching()[0]


async def test_log_records_name_the_span_in_which_they_were_logged(
    traced: tuple[Running, Received], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, received = traced
    grant = await server.claim("a")

    async def logging_it(service: Any) -> Any:
        logging.getLogger("ajet.server").warning("about to answer")
        return await completion_service(service)

    monkeypatch.setattr(model_calls, "completion_service", logging_it)
    await chat(server, grant)
    (call,) = received.wait_for("chat")
    record = wait_for_log(received, "about to answer")
    assert (record.trace_id, record.span_id) == (call.trace_id, call.span_id)
    assert record.severity_text == "WARNING"


async def test_a_call_that_fails_has_an_error(traced: tuple[Running, Received]) -> None:
    server, received = traced
    grant = await server.claim("a")
    answer = await server.http.post("/v1/chat/completions", headers=key(grant), content=b"{")
    assert answer.status_code == 400
    (call,) = received.wait_for("chat")
    assert call.status.code == Status.STATUS_CODE_ERROR
    assert attributes(call)["error.type"] == "invalid_request_error"


async def test_an_aborted_episode_has_its_cause_as_error(
    traced: tuple[Running, Received],
) -> None:
    server, received = traced
    grant = await server.claim("a")
    path = f"/v1/episodes/{grant['episode_id']}/abort"
    body = {"reason": f"broken: {grant['api_key']}", "cause": "error"}
    (await server.http.post(path, headers=CLIENT, json=body)).raise_for_status()
    (episode,) = received.wait_for("invoke_agent")
    assert episode.status.code == Status.STATUS_CODE_ERROR
    found = attributes(episode)
    assert (found["error.type"], found["ajet.reason"]) == ("error", "broken: ajet-ep-**********")


async def test_a_streamed_call_says_when_its_answer_began(
    traced: tuple[Running, Received],
) -> None:
    server, received = traced
    grant = await server.claim("a")
    body = {"messages": [{"role": "user", "content": "a"}], "stream": True, "max_tokens": 4}
    await server.http.post("/v1/chat/completions", headers=key(grant), json=body)
    (call,) = received.wait_for("chat")
    found = attributes(call)
    elapsed = (call.end_time_unix_nano - call.start_time_unix_nano) / 1e9
    assert 0 < found["gen_ai.response.time_to_first_chunk"] <= elapsed
    assert found["gen_ai.request.stream"] is True
    assert found["gen_ai.usage.output_tokens"] > 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_names_the_tokens_that_the_engine_had_cached(
    traced: tuple[Running, Received], monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    take = Generation.take

    def with_cached(self: Generation, chunk: GenerateChunk) -> None:
        take(self, replace(chunk, cached_tokens=3))

    monkeypatch.setattr(Generation, "take", with_cached)
    server, received = traced
    body = {"messages": [{"role": "user", "content": "a"}], "stream": stream, "n": 2}
    grant = await server.claim("a")
    await server.http.post("/v1/chat/completions", headers=key(grant), json=body)
    (call,) = received.wait_for("chat")
    assert attributes(call)["gen_ai.usage.cache_read.input_tokens"] == 3


async def test_a_restarted_server_continues_the_trace_of_an_episode(
    servers: ServerFactory, receiver: tuple[str, Received]
) -> None:
    url, received = receiver
    telemetry = {"enabled": True, "endpoint": url}
    async with servers.running(telemetry=telemetry) as server:
        await server.roll()
        grant = await server.claim("a")
        await chat(server, grant)
    async with servers.running(telemetry=telemetry) as server:
        await server.service.board.wait_until(lambda: server.service.board.state == "ROLLING")
        await chat(server, grant)
        await server.end(grant, 0.0)
    (episode,) = received.wait_for("invoke_agent")
    first, second = received.wait_for("chat", 2)
    assert first.trace_id == second.trace_id == episode.trace_id
    assert episode.start_time_unix_nano <= first.start_time_unix_nano
    assert second.end_time_unix_nano <= episode.end_time_unix_nano
    instances = {
        resource["service.instance.id"] for resource, one in received.spans if "chat" in one.name
    }
    assert len(instances) == 2


async def test_a_dead_collector_is_reported_once_and_costs_the_run_nothing(
    servers: ServerFactory, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    with receiving() as (url, _):
        """Afterwards nothing listens there."""
    async with servers.running(telemetry={"enabled": True, "endpoint": url}) as server:
        await server.roll()
        await server.batch()
        await server.batch()
        assert server.service.coordinator.step == 2
    reports = [one for one in caplog.records if one.name == "ajet.telemetry"]
    assert [one.levelname for one in reports].count("WARNING") == len(reports)
    assert sum("cannot send" in one.message for one in reports) == 1
    assert all(url in one.message for one in reports if "cannot send" in one.message)


async def test_without_the_setting_nothing_is_made(server: Running) -> None:
    assert server.service.telemetry is None
