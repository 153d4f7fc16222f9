"""Servers answer the same with and without their fast paths."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import Any, get_args

import httpx2
import pytest

from ajet_installation.settings import FastPath, ServerSettings
from ajet_server.serve import set_up_collector
from ajet_testing.servers import CLIENT, Running, ServerFactory, key

TEXT = "Don't go: <think> up,  it\n\n  is 12345 o'clock.\n"
VARIES = re.compile(
    r'"(id|created|episode_id|api_key|base_url|created_at|finished_at)":\s*("[^"]*"|[\d.]+)'
)


async def test_all_are_on_unless_the_operator_says_otherwise() -> None:
    assert ServerSettings().fast_paths == get_args(FastPath)


@pytest.mark.parametrize("on", [True, False])
def test_the_collector_runs_rarely_only_with_its_fast_path(on: bool) -> None:
    before = gc.get_threshold()
    # Those of Python: a server that runs in this process has set others.
    gc.set_threshold(700, 10, 10)
    try:
        set_up_collector(["words", "collector"] if on else ["words"])
        assert (gc.get_threshold() != (700, 10, 10)) is on
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


async def test_answers_are_the_same_without_known_words(
    servers: ServerFactory, tmp_path: Path
) -> None:
    without = ServerFactory(servers.model_dir, tmp_path / "without")
    async with servers.running() as plain:
        expected = await conversation(plain)
    async with without.running(fast_paths=[]) as running:
        assert await conversation(running) == expected


async def conversation(server: Running) -> list[Any]:
    """What a client gets for an episode, and for requests that are refused."""
    await server.roll()
    grant = await server.claim()
    options: dict[str, Any] = {"logprobs": True, "seed": 3, "max_tokens": 12}
    first = await server.chat(grant, TEXT, **options)
    said = first.json()["choices"][0]["message"]
    more = [{"role": "user", "content": TEXT}, said, {"role": "user", "content": TEXT * 2}]
    answers = [
        first,
        await server.chat(grant, messages=more, **options),
        await server.chat(grant, TEXT, stream=True, **options),
        await server.chat(grant, temperature=-1),
        await server.http.post("/v1/chat/completions", headers=key(grant), content=b"no JSON"),
        await server.http.post("/v1/chat/completions", json={"model": "any", "messages": []}),
        await server.http.post("/v1/episodes", headers=CLIENT, json={"task_id": 7}),
        await server.http.post("/v1/episodes", headers=CLIENT, content=b'{"task_id": '),
        await server.http.post("/v1/episodes", headers=key(grant), json={"task_id": "a"}),
        await server.http.get("/v1/episodes", headers=CLIENT),
        await server.end(grant, float(2**60)),
        await server.end(grant, 0.5),
        await server.end(grant, 0.5),
        await server.chat(grant, TEXT),
        await server.http.post("/v1/episodes/none/end", headers=CLIENT, json={"reward": 1.0}),
    ]
    return [of(answer, grant["episode_id"]) for answer in answers]


def of(answer: httpx2.Response, episode_id: str) -> tuple[int, list[str], str]:
    """An answer without what differs between two episodes."""
    text = VARIES.sub(r'"\1": ""', answer.text).replace(episode_id, "EPISODE")
    return answer.status_code, sorted(answer.headers), text
