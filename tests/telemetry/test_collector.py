"""Traces, metrics and logs of real processes, through a real collector."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import httpx2
import pytest

from ajet_core.protocol import TraceParent
from tests.support.otlp import Received, attributes, collecting, context, receiving
from tests.support.served_processes import call, chat, kill, serving, start_run, until

pytestmark = pytest.mark.processes


def telemetry(url: str) -> dict[str, str]:
    """Settings of a server that exports ten times a second."""
    return {
        "AJET_TELEMETRY__ENABLED": "true",
        "AJET_TELEMETRY__ENDPOINT": url,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "OTEL_METRIC_EXPORT_INTERVAL": "200",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
    }


async def end(http: httpx2.AsyncClient, grant: dict[str, Any], reward: float) -> None:
    await call(http, "POST", f"/v1/episodes/{grant['episode_id']}/end", {"reward": reward})


def services(received: Received, name: str) -> set[str]:
    """Return which services sent spans of a name."""
    return {
        resource["service.name"] for resource, span in received.spans if span.name.startswith(name)
    }


async def test_a_collector_gets_the_trace_of_an_episode_that_outlives_its_server(
    model_dir: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    with receiving() as (target, received), collecting(target, tmp_path / "log") as collector:
        env = telemetry(collector)
        async with serving(run_dir, model_dir, **env) as (server, http):
            await start_run(http, model_dir)
            grants = [await call(http, "POST", "/v1/episodes", {"task_id": "a"}) for _ in range(2)]
            for grant in grants:
                await chat(http, grant, "hello")
            received.wait_for("chat", 2)
            await kill(server)
        async with serving(run_dir, model_dir, **env) as (server, http):
            await until(http, state="ROLLING")
            await chat(http, grants[0], "hello again")
            for grant, reward in zip(grants, (0.0, 1.0), strict=True):
                await end(http, grant, reward)
            (step,) = received.wait_for("training_step")
            episodes = received.wait_for("invoke_agent", 2)
            calls = received.wait_for("chat", 3)
            received.wait_until(lambda: any(one.name == "ajet_calls" for one in received.metrics))
            received.wait_until(
                lambda: any("listening on" in one.body.string_value for one in received.logs)
            )
    roots = {TraceParent.of_episode(grant["episode_id"]) for grant in grants}
    assert {context(episode) for episode in episodes} == roots
    assert {context(link) for link in step.links} == roots
    assert {(one.trace_id, one.parent_span_id) for one in calls} == {
        (root.trace_id, root.span_id) for root in roots
    }
    assert all(attributes(one)["gen_ai.usage.output_tokens"] > 0 for one in calls)
    assert services(received, "chat") == {"agentjet-server"}
    assert {resource["deployment.environment.name"] for resource, _ in received.spans} == {"test"}


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")
async def test_gateway_processes_export_the_calls_that_they_answer(
    model_dir: Path, tmp_path: Path
) -> None:
    with receiving() as (target, received):
        env = {**telemetry(target), "AJET_SERVER__PROCESSES": "2"}
        async with serving(tmp_path / "run", model_dir, **env) as (_, http):
            await start_run(http, model_dir)
            grant = await call(http, "POST", "/v1/episodes", {"task_id": "a"})
            await chat(http, grant, "hello")
            await end(http, grant, 1.0)
            (one,) = received.wait_for("chat")
            (episode,) = received.wait_for("invoke_agent")
    assert (one.trace_id, one.parent_span_id) == (episode.trace_id, episode.span_id)
    assert services(received, "chat") == {"agentjet-gateway"}
    assert services(received, "invoke_agent") == {"agentjet-server"}
