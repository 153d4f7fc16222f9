"""Runs whose agents sample with top_p, penalties and grammars train what they sampled from."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from test_exact_run import start, until_step

from ajet_cli.main import cli
from ajet_core.timeline import Call
from ajet_testing.real_trainer import servers_with
from ajet_testing.servers import CLIENT, Running

pytestmark = pytest.mark.usefixtures("worker_tasks")

OTHERWISE: tuple[dict[str, Any], ...] = (
    {"top_p": 0.8},
    {"top_k": 5, "temperature": 0.7, "frequency_penalty": 0.5},
    {"response_format": {"type": "json_object"}, "presence_penalty": 0.2},
)


async def episode(server: Running, task: str, number: int) -> None:
    grant = await server.claim(task)
    for turn, fields in enumerate((*OTHERWISE, {})):
        answer = await server.chat(grant, f"{task} {number} {turn}", max_tokens=8, **fields)
        assert answer.status_code == 200, answer.text
    assert (await server.end(grant, float(number))).status_code == 200


@pytest.mark.timeout(300)
def test_a_run_trains_what_its_tokens_were_sampled_from(tmp_path: Path) -> None:
    asyncio.run(check_run(tmp_path))
    result = CliRunner().invoke(
        cli, ["replay", "rerun", str(tmp_path / "run"), "--steps", "1:2", "--json"]
    )
    assert result.exit_code == 0, result.output
    assert [json.loads(line)["identical"] for line in result.stdout.splitlines()] == [True, True]


async def check_run(tmp_path: Path) -> None:
    async with servers_with("torch", tmp_path).running() as server:
        await start(server)
        for step in (1, 2):
            await asyncio.gather(*(episode(server, task, n) for task in "abc" for n in range(2)))
            await until_step(server, step)
        evaluated = await server.claim("a", kind="eval")
        assert (await server.chat(evaluated, "hello", max_tokens=4, top_p=0.5)).is_success
        store = server.service.store
        steps = [step.metrics for step in await store.steps()]
        summaries = (await server.http.get("/v1/status", headers=CLIENT)).json()
        (answered,) = (await store.calls([evaluated["episode_id"]])).values()
        calls: list[Call] = []
        for record in await store.episodes(state="ended"):
            calls += (await store.calls([record.episode_id]))[record.episode_id]
    assert [step["logprob_gap"] for step in steps] == [0.0, 0.0]
    assert [step["tokens_sampled_otherwise"] for step in steps] == [0.0, 0.0]
    assert all(step["grad_norm"] > 0 for step in steps)
    assert "were drawn with" not in json.dumps(summaries)
    assert [call.sampled_from for call in answered] == [None]
    for call in calls:
        by_policy = call.index % 4 == 3
        assert (call.sampled_from is None) == by_policy
    kept = [call.sampled_from for call in calls if call.sampled_from is not None]
    assert any(one.kept for one in kept)
    assert all(len(one.logprobs) == len(one.kept_of) for one in kept)
