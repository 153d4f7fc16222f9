"""``kill -9`` of a serving gateway, started again by the same command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.served_processes import call, chat, kill, serving, start_run, until

pytestmark = pytest.mark.processes


async def test_a_killed_gateway_goes_on_where_it_was(model_dir: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    async with serving(run_dir, model_dir) as (server, http):
        await start_run(http, model_dir)
        for reward in (0.0, 1.0):
            grant = await call(http, "POST", "/v1/episodes", {"task_id": "a"})
            await chat(http, grant, "hello")
            await call(http, "POST", f"/v1/episodes/{grant['episode_id']}/end", {"reward": reward})
        await until(http, step=1, state="ROLLING")
        open_, ended = [
            await call(http, "POST", "/v1/episodes", {"task_id": "b"}) for _ in range(2)
        ]
        said = (await chat(http, open_, "hello"))["choices"][0]["message"]["content"]
        end = f"/v1/episodes/{ended['episode_id']}/end"
        answer = await call(http, "POST", end, {"reward": 0.5})
        await kill(server)
    async with serving(run_dir, model_dir) as (server, http):
        # The run goes on by itself, at its checkpoint, with the worker that it had.
        status = await until(http, state="ROLLING")
        assert (status["step"], status["policy_version"]) == (1, 1)
        assert b"continues after its server was killed" in server.output
        # What was acknowledged stands, and a repeat says so.
        assert await call(http, "POST", end, {"reward": 9.0}) == answer
        # The open episode goes on with its key, and its conversation extends the same tokens.
        await chat(http, open_, "hello", said, "and now?")
        path = f"/v1/timelines/{open_['episode_id']}"
        timeline = await call(http, "GET", path)
        assert len(timeline["calls"]) == 2
        assert status["counters"]["open_episodes"] == 1
        await call(http, "POST", f"/v1/episodes/{open_['episode_id']}/end", {"reward": 1.0})
        await until(http, step=2, state="ROLLING")
        await kill(server)
    async with serving(run_dir, model_dir) as (_, http):
        await until(http, step=2, state="ROLLING")
        assert (await call(http, "GET", "/v1/status"))["counters"]["episodes_ended"] == 4
