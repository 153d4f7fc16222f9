"""Judges report what they use, once, while episodes run."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from agentjet.client import AsyncSwarmClient, SwarmClient
from agentjet.client._paid import MAX_TOKENS, PaidTokens
from agentjet.judges.model import JudgeFailedError, JudgingModel, ModelJudgeSettings, Query
from ajet_core.errors import ServerUnreachableError
from ajet_testing.servers import TOKENS, Running
from tests.judges.judging_endpoint import JudgingEndpoint
from tests.support.runs import status

QUERY = Query(instructions="Rate it.", material={"answer": "x"}, schema={"type": "object"})


def _rated(_: dict[str, Any], __: dict[str, Any]) -> dict[str, Any]:
    return {"score": 1}


def _judge(endpoint: JudgingEndpoint) -> JudgingModel:
    return JudgingModel(ModelJudgeSettings(base_url=endpoint.url, model="judge-1", api_key_env=""))


def _verdict(judge: JudgingModel, number: str) -> float:
    query = Query(instructions=QUERY.instructions, material={"answer": number}, schema=QUERY.schema)
    return judge.verdict(query, lambda value: float(value["score"]))


async def _paid(server: Running) -> list[dict[str, Any]]:
    uses: list[dict[str, Any]] = (await status(server))["spending"]["paid"]
    return uses


async def test_a_judge_of_episodes_is_paid_for_by_their_run(server: Running) -> None:
    await server.roll()
    with JudgingEndpoint(_rated).serving() as endpoint:
        judge = _judge(endpoint)
        # A judge that is tried before the run costs the run nothing.
        _verdict(judge, "before")
        before = judge.spent_tokens

        async def agent(task: Any, episode: Any) -> float:
            return await asyncio.to_thread(_verdict, judge, episode.episode_id)

        async with AsyncSwarmClient(server.url, TOKENS.control) as client:
            await client.run_episodes_until_all_complete(["a", "b"], agent, episodes_per_task=2)
    (use,) = await _paid(server)
    assert (use["source"], use["model"], use["usd"]) == ("judge", "judge-1", None)
    assert use["input_tokens"] + use["output_tokens"] == judge.spent_tokens - before > 0


async def test_agents_in_threads_report_too(server: Running) -> None:
    await server.roll()
    with JudgingEndpoint(_rated).serving() as endpoint:
        judge = _judge(endpoint)

        def run() -> None:
            with SwarmClient(server.url, TOKENS.control) as client:
                client.run_episodes_until_all_complete(
                    ["a"], lambda _, episode: _verdict(judge, episode.episode_id)
                )

        await asyncio.to_thread(run)
    (use,) = await _paid(server)
    assert use["input_tokens"] + use["output_tokens"] == judge.spent_tokens > 0


async def test_tokens_are_reported_also_if_the_runner_is_cancelled(server: Running) -> None:
    await server.roll()
    judged = asyncio.Event()
    with JudgingEndpoint(_rated).serving() as endpoint:
        judge = _judge(endpoint)

        async def agent(task: Any, episode: Any) -> float:
            await asyncio.to_thread(_verdict, judge, episode.episode_id)
            judged.set()
            await asyncio.Event().wait()
            return 0.0

        async with AsyncSwarmClient(server.url, TOKENS.control) as client:
            running = asyncio.create_task(client.run_episodes_until_all_complete(["a"], agent))
            await judged.wait()
            running.cancel()
            await asyncio.wait([running])
            assert running.cancelled()
    (use,) = await _paid(server)
    assert use["input_tokens"] + use["output_tokens"] == judge.spent_tokens > 0


async def test_tokens_are_reported_also_if_an_agent_ends_the_program(server: Running) -> None:
    await server.roll()
    with JudgingEndpoint(_rated).serving() as endpoint:
        judge = _judge(endpoint)

        def agent(task: Any, episode: Any) -> float:
            _verdict(judge, episode.episode_id)
            raise SystemExit("enough")

        def run() -> None:
            with SwarmClient(server.url, TOKENS.control) as client:
                with pytest.raises(SystemExit):
                    client.run_episodes_until_all_complete(["a"], agent)

        await asyncio.to_thread(run)
    (use,) = await _paid(server)
    assert use["input_tokens"] + use["output_tokens"] == judge.spent_tokens > 0


async def test_what_could_not_be_reported_keeps_its_id(server: Running) -> None:
    assert (await server.put_run()).status_code == 200
    tokens = PaidTokens()
    with tokens.counting():
        tokens.note("judge", "judge-1", 5, 2)
    (report,) = tokens.take()
    async with AsyncSwarmClient(server.url, TOKENS.control, retries=0) as client:
        client._unreported.append(report)
        perform = client._connection.perform

        async def lose_the_answer(*arguments: Any, **options: Any) -> Any:
            await perform(*arguments, **options)
            raise ServerUnreachableError("the answer is lost")

        client._connection.perform = lose_the_answer  # type: ignore[method-assign]
        await client.report_paid_tokens()
        assert client._unreported == [report]
        client._connection.perform = perform  # type: ignore[method-assign]
        await client.report_paid_tokens()
        assert client._unreported == []
    assert [(use["input_tokens"], use["output_tokens"]) for use in await _paid(server)] == [(5, 2)]


async def test_what_the_server_refuses_is_not_kept(server: Running) -> None:
    tokens = PaidTokens()
    with tokens.counting():
        tokens.note("judge", "judge-1", 5, 2)
    async with AsyncSwarmClient(server.url, "wrong", retries=0) as client:
        client._unreported += tokens.take()
        await client.report_paid_tokens()
        assert client._unreported == []


def test_tokens_of_threads_are_all_taken_once() -> None:
    tokens = PaidTokens()
    taken: list[int] = []

    def use() -> None:
        for _ in range(200):
            tokens.note("judge", "m", 2, 1)
            taken.extend(report.input_tokens for report in tokens.take())

    with tokens.counting():
        threads = [threading.Thread(target=use) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(taken) == 8 * 200 * 2


@pytest.mark.parametrize("runners", [0, 1])
def test_tokens_count_only_while_episodes_run(runners: int) -> None:
    tokens = PaidTokens()
    for _ in range(runners):
        with tokens.counting():
            pass
    tokens.note("judge", "m", 2, 1)
    assert tokens.take() == []


@pytest.mark.parametrize(
    "sums", [(0, 0), (5, MAX_TOKENS), (MAX_TOKENS + 1, 7), (3 * MAX_TOKENS, 0)]
)
def test_sums_beyond_what_a_report_can_have_are_divided(sums: tuple[int, int]) -> None:
    tokens = PaidTokens()
    with tokens.counting():
        tokens.note("judge", "m", *sums)
    reports = tokens.take()
    assert len({report.report_id for report in reports}) == len(reports) >= 1
    taken = [(report.input_tokens, report.output_tokens) for report in reports]
    assert tuple(map(sum, zip(*taken, strict=True))) == sums


def test_a_model_without_a_name_gets_one() -> None:
    tokens = PaidTokens()
    with tokens.counting():
        tokens.note("judge", "", 1, 1)
    assert [report.model for report in tokens.take()] == ["unnamed"]


async def test_an_absurd_number_of_tokens_ends_no_episode(server: Running) -> None:
    await server.roll()
    with JudgingEndpoint(_rated, tokens=2**70).serving() as endpoint:
        judge = _judge(endpoint)

        async def agent(task: Any, episode: Any) -> float:
            return await asyncio.to_thread(_verdict, judge, episode.episode_id)

        async with AsyncSwarmClient(server.url, TOKENS.control) as client:
            await client.run_episodes_until_all_complete(["a"], agent, episodes_per_task=2)
    (use,) = await _paid(server)
    assert use["input_tokens"] + use["output_tokens"] == 2 * MAX_TOKENS


@pytest.mark.processes
def test_an_infinite_number_of_tokens_is_no_completion() -> None:
    with JudgingEndpoint(_rated, tokens=float("inf")).serving() as endpoint:
        with pytest.raises(JudgeFailedError, match="no completion"):
            _verdict(_judge(endpoint), "x")
