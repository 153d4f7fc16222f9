"""Real SDKs and clients, made for another endpoint, inside episodes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import copy_context
from itertools import count
from typing import Any

import httpx
import httpx2
import openai
import pytest
from openai import AsyncOpenAI, DefaultAioHttpClient, OpenAI

from agentjet.agents import (
    agent_name,
    instrument,
    passthrough,
    routed,
    routed_transports,
    trainable,
)
from agentjet.client import AsyncSwarmClient, SwarmClient, Task
from ajet_testing.scripted_swarm import ScriptedSwarm
from tests.agents.plain import NOWHERE

_numbers = count()
ASKED: dict[str, Any] = {"model": "gpt-5", "messages": [{"role": "user", "content": "Which door?"}]}


def made_for_nowhere(kind: Callable[..., Any], **options: Any) -> Any:
    base = NOWHERE.removesuffix("/v1") if "Anthropic" in kind.__name__ else NOWHERE
    return kind(base_url=base, api_key="sk-real", max_retries=0, **options)


async def agents_of(swarm: ScriptedSwarm, program: Any, **terms: Any) -> list[str]:
    """The agents of the calls of one episode of a program."""
    async with AsyncSwarmClient(swarm.url, swarm.token) as client:
        traced = trainable(program, client, reward=lambda task, result: 1.0, **terms)
        # A task of its own: batches take no more than so many episodes of one.
        played = await traced.episode(f"task {next(_numbers)}")
    return [call.agent for call in swarm.calls(played.episode.episode_id)]


async def test_async_clients_are_rerouted_in_every_dialect(swarm: ScriptedSwarm) -> None:
    from anthropic import AsyncAnthropic
    from google import genai

    async def program(task: str) -> None:
        async with made_for_nowhere(AsyncOpenAI) as client:
            with agent_name("chat"):
                await client.chat.completions.create(**ASKED)
            with agent_name("stream"):
                async for _ in await client.chat.completions.create(**ASKED, stream=True):
                    pass
            with agent_name("responses"):
                await client.responses.create(model="gpt-5", input="Which door?")
            with agent_name("text"):
                await client.completions.create(model="gpt-5", prompt="Which door?")
        async with made_for_nowhere(AsyncAnthropic) as client:
            with agent_name("messages"):
                await client.messages.create(**ASKED, max_tokens=99)
                await client.messages.count_tokens(**ASKED)
        base = NOWHERE.removesuffix("/v1")
        # It prefers aiohttp, which is not rerouted.
        async with httpx.AsyncClient() as plain:
            options: Any = {"base_url": base, "httpx_async_client": plain}
            google = genai.Client(api_key="real", http_options=options).aio.models
            terms: Any = {"model": "gemini", "contents": "Which door?"}
            with agent_name("google"):
                await google.generate_content(**terms)
                async for _ in await google.generate_content_stream(**terms):
                    pass
                await google.count_tokens(**terms)

    assert await agents_of(swarm, program) == (
        ["chat", "stream", "responses", "text", "messages", "google", "google"]
    )


def test_sync_clients_are_rerouted_too(swarm: ScriptedSwarm) -> None:
    from anthropic import Anthropic

    def program(task: str) -> None:
        with made_for_nowhere(OpenAI) as client, agent_name("计划"):
            client.chat.completions.create(**ASKED)
            for _ in client.chat.completions.create(**ASKED, stream=True):
                pass
        with made_for_nowhere(Anthropic) as client:
            client.messages.create(**ASKED, max_tokens=99)

    with SwarmClient(swarm.url, swarm.token) as client:
        played = trainable(program, client, reward=lambda task, result: 1.0).episode("sync task")
    calls = swarm.calls(played.episode.episode_id)
    assert [call.agent for call in calls] == ["计划", "计划", ""]


async def test_other_transports_of_a_client_do_not_matter(swarm: ScriptedSwarm) -> None:
    async def program(task: str) -> None:
        async with made_for_nowhere(AsyncOpenAI, http_client=DefaultAioHttpClient()) as client:
            await client.chat.completions.create(**ASKED)
        async with httpx.AsyncClient(auth=("me", "secret"), proxy="http://127.0.0.1:9") as plain:
            answer = await plain.post(f"{NOWHERE}/chat/completions", json=ASKED)
            assert answer.status_code == 200

    assert await agents_of(swarm, program) == ["", ""]


async def test_tasks_and_threads_with_the_context_belong_to_the_episode(
    swarm: ScriptedSwarm,
) -> None:
    def ask() -> None:
        with made_for_nowhere(OpenAI) as client:
            client.chat.completions.create(**ASKED)

    async def program(task: str) -> None:
        with agent_name("thread"):
            await asyncio.to_thread(ask)
        with agent_name("task"):
            async with made_for_nowhere(AsyncOpenAI) as client:
                await asyncio.gather(*(client.chat.completions.create(**ASKED) for _ in range(3)))
        with agent_name("own thread"):
            thread = threading.Thread(target=copy_context().run, args=(ask,))
            thread.start()
            await asyncio.to_thread(thread.join)

    assert await agents_of(swarm, program) == ["thread", "task", "task", "task", "own thread"]


async def test_what_is_not_the_episodes_goes_where_it_would(swarm: ScriptedSwarm) -> None:
    async def program(task: str) -> None:
        async with made_for_nowhere(AsyncOpenAI) as client:
            with pytest.raises(openai.APIConnectionError), passthrough():
                await client.chat.completions.create(**ASKED)
            with pytest.raises(openai.APIConnectionError):
                await client.chat.completions.create(**{**ASKED, "model": "judge"})
            with pytest.raises(openai.APIConnectionError):
                await client.embeddings.create(model="gpt-5", input="x")
            await client.chat.completions.create(**ASKED)
        with pytest.raises(openai.APIConnectionError), routed(None):
            async with made_for_nowhere(AsyncOpenAI) as client:
                await client.chat.completions.create(**ASKED)

    assert await agents_of(swarm, program, passthrough=["judge"]) == [""]


@pytest.mark.parametrize("where", ["authorization", "x-api-key", "path"])
async def test_an_episode_in_an_episode_has_its_own_calls(swarm: ScriptedSwarm, where: str) -> None:
    """If the program claims one itself, and asks at its address with its key."""
    inner: list[str] = []

    async def ask(base_url: str, api_key: str) -> None:
        """As a program does that is told where to ask."""
        if where == "x-api-key":
            from anthropic import AsyncAnthropic

            base = base_url.removesuffix("/v1")
            async with AsyncAnthropic(base_url=base, api_key=api_key) as client:
                await client.messages.create(**ASKED, max_tokens=99)
            return
        if where == "path":
            base_url = f"{base_url.removesuffix('/v1')}/e/{api_key}/v1"
            api_key = "none"
        async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
            await client.chat.completions.create(**ASKED)

    async def program(task: str) -> None:
        async with made_for_nowhere(AsyncOpenAI) as outside:
            with agent_name("outer"):
                await outside.chat.completions.create(**ASKED)
                async with (
                    AsyncSwarmClient(swarm.url, swarm.token) as client,
                    client.episode(f"inside {task}") as episode,
                ):
                    await ask(episode.base_url, episode.api_key)
                    inner.append(episode.episode_id)
                    episode.reward = 1.0
                await outside.chat.completions.create(**ASKED)

    assert await agents_of(swarm, program) == ["outer", "outer"]
    assert [[call.agent for call in swarm.calls(episode)] for episode in inner] == [[""]]


async def test_whoever_has_the_key_of_its_own_episode_is_in_it(swarm: ScriptedSwarm) -> None:
    async with AsyncSwarmClient(swarm.url, swarm.token) as client:
        episode = await client.begin_episode(f"task {next(_numbers)}")

        async def program(task: str) -> float:
            base_url, api_key = episode.base_url, episode.api_key
            async with AsyncOpenAI(base_url=base_url, api_key=api_key) as llm:
                with agent_name("me"):
                    await llm.chat.completions.create(**ASKED)
            return 1.0

        outcome = await trainable(program).agent(Task("task"), episode)
        await client.end_episode(episode, outcome)
    assert [call.agent for call in swarm.calls(episode.episode_id)] == ["me"]


async def test_a_client_lives_in_one_event_loop_after_another(swarm: ScriptedSwarm) -> None:
    existing = made_for_nowhere(AsyncOpenAI)

    async def program(task: str) -> None:
        await existing.chat.completions.create(**ASKED)

    async def episode() -> list[str]:
        return await agents_of(swarm, program)

    for _ in range(3):
        assert await asyncio.to_thread(asyncio.run, episode()) == [""]


@pytest.mark.parametrize("library", [httpx, httpx2])
async def test_a_client_can_be_given_a_transport_instead(
    swarm: ScriptedSwarm, library: Any
) -> None:
    transports = routed_transports(library.__name__)

    async def program(task: str) -> None:
        async with library.AsyncClient(transport=transports.asynchronous) as client:
            answer = await client.post(f"{NOWHERE}/chat/completions", json=ASKED)
            assert answer.status_code == 200
        with library.Client(transport=transports.sync) as client:
            answer = await asyncio.to_thread(client.post, f"{NOWHERE}/chat/completions", json=ASKED)
            assert answer.status_code == 200

    assert await agents_of(swarm, program) == ["", ""]


def test_instrumenting_again_changes_nothing() -> None:
    instrument()
    once = [library.Client.send for library in (httpx, httpx2)]
    instrument()
    assert [library.Client.send for library in (httpx, httpx2)] == once
