"""Runners of joint episodes, both kinds, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from agentjet.client import AsyncSwarm, EpisodeOutcome, Swarm, SwarmEpisode, Task
from ajet_core.errors import ConfigError, StateError
from ajet_core.protocol import RunConfig
from ajet_testing.servers import TOKENS, Running, ServerFactory

pytestmark = pytest.mark.processes

Servers = dict[str, Running]
Agent = Callable[[Task, SwarmEpisode], Any]


@pytest.fixture
async def two(workers: None, model_dir: Path, tmp_path: Path) -> AsyncIterator[Servers]:
    """Two servers that are OFFLINE."""
    async with contextlib.AsyncExitStack() as stack:
        yield {
            role: await stack.enter_async_context(
                ServerFactory(model_dir, tmp_path / role).running()
            )
            for role in ("executor", "planner")
        }


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


async def with_swarm(kind: str, servers: Servers, work: Callable[[Any], Any]) -> Any:
    """Let `work` use a swarm: in a thread the sync one, here the async one."""
    urls = {role: server.url for role, server in servers.items()}
    tokens = dict.fromkeys(servers, TOKENS.control)
    if kind == "sync":

        def run() -> Any:
            with Swarm(urls, tokens) as swarm:
                return work(swarm)

        return await asyncio.to_thread(run)
    async with AsyncSwarm(urls, tokens) as swarm:
        return await work(swarm)


def as_agent(kind: str, agent: Agent) -> Agent:
    async def later(task: Task, episode: SwarmEpisode) -> Any:
        return agent(task, episode)

    return agent if kind == "sync" else later


async def start(kind: str, servers: Servers, size: int = 2) -> None:
    batch = {"tasks": 4, "episodes_per_task": size}
    configs = {
        role: RunConfig.model_validate(server.config(batch=batch))
        for role, server in servers.items()
    }
    for step in (lambda s: s.sync_train_config(configs), lambda s: s.start_engine()):
        await with_swarm(kind, servers, step)


async def test_a_dataset_is_rolled_out_on_both_and_what_has_ended_is_not_done_again(
    two: Servers, kind: str
) -> None:
    await start(kind, two)
    failed: list[str] = []

    def agent(task: Task, episode: SwarmEpisode) -> dict[str, float]:
        if task.id == "b" and not failed:
            failed.append(episode.joint_id)
            raise ValueError("no such tool")
        return {"planner": 1.0, "executor": 0.5}

    def work(swarm: Any) -> Any:
        return swarm.run_episodes_until_all_complete(
            ["a", "b"], as_agent(kind, agent), episodes_per_task=2, resume=True
        )

    report = await with_swarm(kind, two, work)
    assert (len(report.outcomes), report.failures, report.reward_mean) == (4, [], 0.75)
    for role, reward in (("planner", 1.0), ("executor", 0.5)):
        store = two[role].service.store
        ended = await store.episodes(state="ended")
        assert [record.reward for record in ended] == [reward] * 4
        (aborted,) = await store.episodes(state="aborted")
        assert (aborted.task_id, aborted.cause) == ("b", "error")
        assert "no such tool" in aborted.reason
    again = await with_swarm(kind, two, work)
    assert again.outcomes == []


async def test_parts_keep_their_leases_while_another_one_waits_for_a_place(
    two: Servers, kind: str
) -> None:
    await start(kind, two)
    # The planner's slots for this task are taken, so that the second joint episode waits there.
    taken = [await two["planner"].claim("a") for _ in range(2)]

    def work(swarm: Any) -> Any:
        return swarm.run_episodes_until_all_complete(
            ["a"], as_agent(kind, lambda _task, _episode: 1.0), lease_seconds=1.0
        )

    running = asyncio.create_task(with_swarm(kind, two, work))
    executor = two["executor"].service.episodes.open
    beats = 0
    seen = None
    # Several leases long, by what the server sees of the client and by no clock of ours.
    while beats < 8:
        await asyncio.sleep(0)
        (part,) = list(executor) or (None,)
        if part is not None and part.seen_at != seen:
            beats, seen = beats + 1, part.seen_at
    for grant in taken:
        await two["planner"].http.post(
            f"/v1/episodes/{grant['episode_id']}/abort",
            headers={"authorization": f"Bearer {TOKENS.client}"},
            json={"reason": "x", "cause": "cancelled"},
        )
    report = await running
    assert (len(report.outcomes), report.failures) == (1, [])
    states = [record.state for record in await two["executor"].service.store.episodes()]
    assert states == ["ended"]


async def test_a_runner_resolves_what_an_earlier_program_left(two: Servers, kind: str) -> None:
    await start(kind, two)
    urls = {role: server.url for role, server in two.items()}
    async with AsyncSwarm(urls, dict.fromkeys(two, TOKENS.control)) as earlier:
        episode = await earlier.begin_episode("a")
        await earlier["planner"]._end(episode["planner"], EpisodeOutcome(reward=1.0), prepare=True)
        await earlier["executor"].end_episode(episode["executor"], 1.0)

    def work(swarm: Any) -> Any:
        return swarm.run_episodes_until_all_complete(
            ["a"], as_agent(kind, lambda _task, _episode: 1.0), resume=True
        )

    report = await with_swarm(kind, two, work)
    assert report.outcomes == []
    (record,) = await two["planner"].service.store.episodes()
    assert record.state == "ended"


async def test_runs_of_unequal_groups_do_not_start(two: Servers, kind: str) -> None:
    for role, size in (("planner", 2), ("executor", 3)):
        batch = {"tasks": 4, "episodes_per_task": size}
        (await two[role].put_run(batch=batch)).raise_for_status()
    with pytest.raises(ConfigError, match="episodes_per_task differs"):
        await with_swarm(kind, two, lambda swarm: swarm.start_engine())
    for server in two.values():
        assert server.service.board.state == "OFFLINE"


async def test_a_run_that_is_configured_anew_is_compared_again(two: Servers, kind: str) -> None:
    await start(kind, two, size=2)
    larger = {"tasks": 4, "episodes_per_task": 3}
    config = RunConfig.model_validate(two["planner"].config(batch=larger))

    def work(swarm: Swarm) -> None:
        swarm.stop_engine()
        swarm["planner"].sync_train_config(config)
        for start_again in (
            swarm.start_engine,
            lambda: swarm.run_episodes_until_all_complete(["a"], lambda *_: 0.0),
        ):
            with pytest.raises(ConfigError, match="episodes_per_task differs"):
                start_again()

    async def work_async(swarm: AsyncSwarm) -> None:
        await swarm.stop_engine()
        await swarm["planner"].sync_train_config(config)

        async def agent(_task: Task, _episode: SwarmEpisode) -> float:
            return 0.0

        with pytest.raises(ConfigError, match="episodes_per_task differs"):
            await swarm.start_engine()
        with pytest.raises(ConfigError, match="episodes_per_task differs"):
            await swarm.run_episodes_until_all_complete(["a"], agent)

    await with_swarm(kind, two, work if kind == "sync" else work_async)
    for server in two.values():
        assert server.service.board.state == "OFFLINE"


async def test_a_swarm_without_runs_says_so(two: Servers, kind: str) -> None:
    with pytest.raises(StateError, match="no run is configured"):
        await with_swarm(kind, two, lambda swarm: swarm.begin_episode("a"))
