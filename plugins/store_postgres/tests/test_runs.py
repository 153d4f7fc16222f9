"""Whole runs of a server whose records are in PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from postgres_server import PostgresServer

from agentjet import AsyncSwarmClient, Task
from agentjet.client import Episode
from ajet_core.errors import ConfigError
from ajet_testing.servers import CONTROL, TOKENS, Running, ServerFactory, write_scripted_model

pytestmark = pytest.mark.postgres
SAID = [{"role": "user", "content": "hello"}]


@pytest.fixture
def own() -> Iterator[PostgresServer]:
    """A running server that the test may stop."""
    with PostgresServer() as server:
        server.start()
        yield server


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServerFactory:
    """Makes servers with scripted components, each on the same run directory."""
    return ServerFactory(write_scripted_model(tmp_path / "models" / "m"), tmp_path / "run")


def settings(postgres: PostgresServer) -> dict[str, Any]:
    """The settings of the store."""
    return {"name": "postgres", "settings": {"dsn": postgres.dsn, "connect_seconds": 2}}


rewarded: Counter[str] = Counter()


async def agent(task: Task, episode: Episode) -> float:
    """An ordinary agent: two turns of a conversation; rewards of a task differ."""
    async with AsyncOpenAI(
        base_url=episode.base_url, api_key=episode.api_key, max_retries=10
    ) as model:
        said: list[Any] = [{"role": "user", "content": "hello"}]
        for turn in range(2):
            answer = await model.chat.completions.create(model="any", messages=said)
            text = answer.choices[0].message.content or ""
            said += [
                {"role": "assistant", "content": text},
                {"role": "user", "content": f"and {turn}?"},
            ]
    rewarded[task.id] += 1
    return float(rewarded[task.id] % 2)


def _reached(server: Running, step: int) -> bool:
    return server.service.coordinator.step >= step


async def test_a_database_restarted_three_times_ends_and_loses_nothing(
    own: PostgresServer, servers: ServerFactory
) -> None:
    async with servers.running(store=settings(own)) as server:
        batch = {"tasks": 2, "episodes_per_task": 2, "full_by": "tasks"}
        await server.roll(checkpoint_every=1, batch=batch)
        tasks = [Task(f"task-{number}") for number in range(40)]
        async with AsyncSwarmClient(server.url, TOKENS.client) as client:
            running = asyncio.create_task(
                client.run_episodes_until_all_complete(tasks, agent, episodes_per_task=2)
            )
            for step in (2, 5, 8):
                await server.service.board.wait_until(partial(_reached, server, step))
                await asyncio.to_thread(own.stop, "immediate")
                await asyncio.to_thread(own.start)
            report = await running
        await server.service.board.wait_until(lambda: server.service.coordinator.step >= 20)
        assert (len(report.outcomes), list(report.failures)) == (80, [])
        status = (await server.http.get("/v1/status", headers=CONTROL)).json()
        assert status["paused"] is None
        assert status["error"] is None
        store = server.service.store
        steps = await store.steps()
        assert [step.step for step in steps] == list(range(1, 21))
        batches = {b.batch_id: b for b in await store.batches(after_step=0)}
        trained = [i for step in steps for i in batches[step.batch_id].episode_ids]
        assert len(trained) == len(set(trained)) == 80
        ended = [e for e in await store.episodes() if e.state == "ended"]
        assert {e.episode_id for e in ended} == set(trained)
        calls = await store.calls(trained)
        # A call whose answer was lost with its connection may have been repeated.
        assert all(len(calls[episode_id]) >= 2 for episode_id in trained)


# How each format says which error of agentjet it is; its `type` or `status` has the format's words.
CODES: dict[str, tuple[dict[str, Any], Callable[[Any], str]]] = {
    "/v1/chat/completions": ({"messages": SAID}, lambda error: error["code"]),
    "/v1/completions": ({"prompt": "hello"}, lambda error: error["code"]),
    "/v1/responses": ({"input": "hello"}, lambda error: error["code"]),
    "/v1/messages": ({"messages": SAID, "max_tokens": 9}, lambda error: error["code"]),
    "/v1beta/models/any:generateContent": (
        {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]},
        lambda error: error["details"][0]["reason"].lower(),
    ),
}


async def test_model_calls_say_in_every_format_that_the_database_is_away(
    own: PostgresServer, servers: ServerFactory
) -> None:
    async with servers.running(store={**settings(own), "retry_seconds": 0.05}) as server:
        await server.roll()
        grant = await server.claim()
        await asyncio.to_thread(own.stop, "immediate")
        for path, (body, code) in CODES.items():
            headers = {"authorization": f"Bearer {grant['api_key']}"}
            answer = await server.http.post(path, headers=headers, json=body)
            assert (answer.status_code, answer.headers["x-should-retry"]) == (503, "true"), path
            assert code(answer.json()["error"]) == "store_unavailable", answer.text
        await asyncio.to_thread(own.start)
        assert (await server.chat(grant)).status_code == 200


async def test_a_server_that_is_started_again_goes_on_with_the_records(
    postgres: PostgresServer, servers: ServerFactory
) -> None:
    async with servers.running(store=settings(postgres)) as server:
        await server.roll(checkpoint_every=1)
        await server.batch()
        grant = await server.claim("open")
        assert (await server.chat(grant)).status_code == 200
    async with servers.running(store=settings(postgres)) as server:
        await server.service.board.wait_until(lambda: server.service.board.rolling)
        assert server.service.coordinator.step == 1
        assert (await server.chat(grant)).status_code == 200
        assert (await server.end(grant, 1.0)).status_code == 200
        assert len(await server.service.store.episodes()) == 5
        # Tools read beside the server.
        shown = await ajet("inspect", str(servers.run_dir), "--json", config=dsn_of(postgres))
        assert len(json.loads(shown)["episodes"]) == 5


async def test_a_run_moves_from_sqlite_to_postgres_and_goes_on(
    postgres: PostgresServer, servers: ServerFactory
) -> None:
    async with servers.running() as server:
        await server.roll(checkpoint_every=1)
        await server.batch()
    said = await ajet("store", "copy", str(servers.run_dir), config=dsn_of(postgres))
    assert "copied 4 episodes with 4 calls, 1 batches and 1 steps" in said
    async with servers.running(store=settings(postgres)) as server:
        await server.service.board.wait_until(lambda: server.service.board.rolling)
        await server.batch()
        assert [step.step for step in await server.service.store.steps()] == [1, 2]


async def test_a_run_moves_between_databases_and_no_server_misses_it(
    postgres: PostgresServer, own: PostgresServer, servers: ServerFactory
) -> None:
    old = {"name": "postgres", "settings": {"dsn": f"{postgres.dsn} password=geheim"}}
    async with servers.running(store=old) as server:
        await server.roll(checkpoint_every=1)
        await server.batch()
    note = servers.run_dir / "store.json"
    noted = note.read_text()
    assert f"host={postgres.directory} dbname=postgres user=ajet" in noted
    assert "geheim" not in noted
    # The settings of the new database do not have the password of the old one.
    with pytest.raises(ConfigError, match=rf"{postgres.directory}.*has no run.*ajet store copy"):
        async with servers.running(store=settings(own)):
            pass
    assert note.read_text() == noted
    said = await ajet("store", "copy", str(servers.run_dir), config=dsn_of(own))
    assert "copied 4 episodes with 4 calls, 1 batches and 1 steps" in said
    said = await ajet("store", "copy", str(servers.run_dir), config=dsn_of(own), fails=True)
    assert "already uses the store 'postgres'" in said
    async with servers.running(store=settings(own)) as server:
        await server.service.board.wait_until(lambda: server.service.board.rolling)
        await server.batch()
    with pytest.raises(ConfigError, match=rf"{own.directory}.*which has other records"):
        async with servers.running(store=settings(postgres)):
            pass
    # The database that has the run has another address now.
    elsewhere = {"name": "postgres", "settings": {"dsn": f"{own.dsn} port=5432"}}
    async with servers.running(store=elsewhere) as server:
        assert len(await server.service.store.steps()) == 2
    assert "port=5432" in note.read_text()


def dsn_of(postgres: PostgresServer) -> str:
    """A settings file that chooses the store."""
    return f'[store]\nname = "postgres"\nsettings = {{dsn = "{postgres.dsn}"}}\n'


async def ajet(*arguments: str, config: str, fails: bool = False) -> str:
    """Run a command of ``ajet`` with the text of a settings file, and return what it prints."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(config)
        file.flush()
        done = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ajet_cli.main", *arguments, "--config", file.name),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await done.communicate()
    assert bool(done.returncode) == fails, said.decode()
    return said.decode()
