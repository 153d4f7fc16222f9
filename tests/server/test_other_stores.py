"""A server with another distribution's store: same runs, status, restarts and tools."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from click.testing import CliRunner

from ajet_cli.main import cli
from ajet_testing.servers import CONTROL, Running, ServerFactory
from tests.embedded.jsonl_hooks import plugins_with_jsonl

pytestmark = pytest.mark.processes

STORE = {"name": "jsonl", "settings": {"file": "mine.jsonl"}}


async def counters(server: Running) -> dict[str, Any]:
    """The counters of the server's status."""
    answer = await server.http.get("/v1/status", headers=CONTROL)
    found: dict[str, Any] = answer.json()["counters"]
    return found


async def test_a_run_goes_on_with_the_records_of_another_store(
    servers: ServerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers.plugins = plugins_with_jsonl
    monkeypatch.setattr("ajet_cli.state.plugin_manager", lambda _: plugins_with_jsonl())
    async with servers.running(store=STORE) as server:
        await server.roll(checkpoint_every=100)
        await server.batch()
        before = await counters(server)
        open_ = await server.claim("open")
        assert (await server.chat(open_)).status_code == 200
    assert (before["episodes_ended"], before["calls"]) == (4, 4)
    async with servers.running(store=STORE) as server:
        # No checkpoint was made: the batch is trained again from its records.
        await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)
        assert [step.step for step in await server.service.store.steps()] == [1]
        after = await counters(server)
        assert (after["episodes_ended"], after["calls"]) == (4, 5)
        # Its episode is still open, with the same key.
        assert (await server.chat(open_)).status_code == 200
        inspect = ["inspect", str(servers.run_dir), "--json"]
        shown = await asyncio.to_thread(CliRunner().invoke, cli, inspect)
        listed = {row["episode_id"]: row for row in json.loads(shown.stdout)["episodes"]}
        assert len(listed) == 5
        assert listed[open_["episode_id"]]["calls"] == 2
        assert sorted(str(row["step"]) for row in listed.values()) == ["1"] * 4 + ["None"]
    assert not (servers.run_dir / "samples.sqlite3").exists()
