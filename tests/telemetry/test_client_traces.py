"""Programs that use OpenTelemetry, as clients of a server that exports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agentjet import AsyncSwarmClient, SwarmClient, trainable
from agentjet.client._tracing import trace_headers
from ajet_core.protocol import TraceParent
from ajet_testing.servers import CLIENT, Running, ServerFactory
from tests.support.otlp import Received, receiving

TOKEN = CLIENT["authorization"].removeprefix("Bearer ")


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """The program's own spans."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # A provider can be set once for a process.
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


@pytest.fixture
async def traced(
    servers: ServerFactory, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Running, Received]]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    with receiving() as (url, received):
        async with servers.running(telemetry={"enabled": True, "endpoint": url}) as server:
            await server.roll()
            yield server, received


def ids(span: ReadableSpan) -> TraceParent:
    context = span.get_span_context()
    assert context is not None
    return TraceParent(context.trace_id.to_bytes(16, "big"), context.span_id.to_bytes(8, "big"))


def rollouts(spans: InMemorySpanExporter) -> list[ReadableSpan]:
    return [one for one in spans.get_finished_spans() if one.name == "rollout"]


async def call(episode: Any, **headers: str) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    headers["authorization"] = f"Bearer {episode.api_key}"
    async with httpx2.AsyncClient() as http:
        url = f"{episode.base_url}/chat/completions"
        (await http.post(url, json=body, headers=headers)).raise_for_status()


async def test_a_rollout_is_part_of_the_trace_of_its_episode(
    traced: tuple[Running, Received], spans: InMemorySpanExporter
) -> None:
    server, received = traced

    async def agent(task: Any, episode: Any) -> float:
        # As the instrumentation of an HTTP library does.
        await call(episode, **trace_headers())
        return 1.0

    async with AsyncSwarmClient(server.url, TOKEN) as client:
        with trace.get_tracer("program").start_as_current_span("evaluation") as around:
            await client.run_episodes_until_all_complete(["a"], agent, kind="eval")
    (rollout,) = rollouts(spans)
    (episode,) = received.wait_for("invoke_agent")
    (chat,) = received.wait_for("chat")
    (claim,) = received.wait_for("claim")
    mine = ids(rollout)
    assert rollout.parent is not None
    assert (mine.trace_id, rollout.parent.span_id.to_bytes(8, "big")) == (
        episode.trace_id,
        episode.span_id,
    )
    assert (chat.trace_id, chat.parent_span_id) == (mine.trace_id, mine.span_id)
    # The program's own trace refers to that of the episode, and the other way round.
    outer = ids(around)
    assert [link.context.span_id for link in rollout.links] == [around.get_span_context().span_id]
    assert (claim.trace_id, claim.parent_span_id) == (outer.trace_id, outer.span_id)
    assert [link.trace_id for link in claim.links] == [episode.trace_id]


async def test_a_rollout_in_a_thread_is_linked_to_the_span_around_the_runner(
    traced: tuple[Running, Received], spans: InMemorySpanExporter
) -> None:
    server, _ = traced

    def agent(task: Any, episode: Any) -> float:
        asyncio.run(call(episode))
        return 1.0

    def run() -> trace.Span:
        with SwarmClient(server.url, TOKEN) as client:
            with trace.get_tracer("program").start_as_current_span("evaluation") as around:
                client.run_episodes_until_all_complete(["a"], agent, kind="eval")
        return around

    around = await asyncio.to_thread(run)
    (rollout,) = rollouts(spans)
    assert [link.context for link in rollout.links] == [around.get_span_context()]


async def test_a_rerouted_call_names_the_span_of_its_rollout(
    traced: tuple[Running, Received], spans: InMemorySpanExporter
) -> None:
    server, received = traced

    @trainable(reward=lambda task, answer: 1.0)
    async def solve(task: Any) -> None:
        body = {"model": "gpt", "messages": [{"role": "user", "content": "hello"}]}
        async with httpx2.AsyncClient() as http:
            await http.post("https://api.openai.com/v1/chat/completions", json=body)

    async with AsyncSwarmClient(server.url, TOKEN) as client:
        await client.run_episodes_until_all_complete(["a"], solve.agent, kind="eval")
    (rollout,) = rollouts(spans)
    (chat,) = received.wait_for("chat")
    assert (chat.trace_id, chat.parent_span_id) == ids(rollout)[:2]


def test_without_a_span_no_header_is_sent() -> None:
    assert trace_headers() == {}
