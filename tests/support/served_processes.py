"""A gateway in a process of its own, to kill and to start again by the same command."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from tests.support.scripted_server import ServerProcess, server_process

CONTROL = {"authorization": "Bearer control-token-of-the-kill-test"}


@asynccontextmanager
async def serving(
    run_dir: Path, model_dir: Path, **env: str
) -> AsyncIterator[tuple[ServerProcess, httpx2.AsyncClient]]:
    """A server process, and a client of it."""
    settings = {
        "AJET_SERVER__CONTROL_TOKEN": CONTROL["authorization"].removeprefix("Bearer "),
        "AJET_SERVER__MODEL_ROOTS": json.dumps([str(model_dir.parent)]),
    }
    async with (
        server_process(run_dir, **settings, **env) as server,
        httpx2.AsyncClient(base_url=server.url, timeout=60) as http,
    ):
        yield server, http


async def call(
    http: httpx2.AsyncClient, method: str, path: str, body: Any = None, key: str = ""
) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {key}"} if key else CONTROL
    answer = await http.request(method, path, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def start_run(
    http: httpx2.AsyncClient, model_dir: Path, *, engine: Any = None, **trainer: Any
) -> None:
    """Start a run of batches of one task, with a checkpoint of each step."""
    config = {
        "model": {"path": str(model_dir), "renderer": "qwen3"},
        "engine": {"name": "scripted", "settings": engine or {}},
        "trainer": {"name": "scripted", "settings": trainer},
        "batch": {"tasks": 1, "episodes_per_task": 2},
        "rollout": {"allow_no_calls": True},
        "checkpoint_every": 1,
    }
    await call(http, "PUT", "/v1/run", config)
    await call(http, "POST", "/v1/run/start", {"wait_seconds": 60})


async def until(http: httpx2.AsyncClient, **wanted: object) -> dict[str, Any]:
    while True:
        status = await call(http, "GET", "/v1/status")
        assert status["error"] is None
        if all(status[name] == value for name, value in wanted.items()):
            return status
        await asyncio.sleep(0.01)


async def chat(http: httpx2.AsyncClient, grant: dict[str, Any], *texts: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    return await call(
        http, "POST", "/v1/chat/completions", {"messages": messages}, grant["api_key"]
    )


async def kill(server: ServerProcess) -> None:
    server.process.kill()
    await server.process.wait()
