"""Learning a world on a running server, with measurements."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TypeVar

from agentjet.client import AsyncSwarmClient, EpisodeFailure, EpisodeResult, SwarmClient
from ajet_core.errors import AjetError
from ajet_core.interfaces import World
from ajet_core.protocol import ServerState, ServerStatus
from ajet_worlds.agent import WorldAgent

T = TypeVar("T")

EVAL_TASKS = 128
POLL_SECONDS = 0.05
PAUSE_POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Learned:
    """The result of a run.

    :param before: mean success on held-out tasks before the first step.
    :param after: the same with the weights of the last step.
    :param curve: mean success of the training episodes by the policy version at their claim, from 0
        on; versions without episodes repeat the previous value.
    :param seconds: time from the first claim of a training episode until the last weights are
        served.
    """

    before: float
    after: float
    curve: tuple[float, ...]
    seconds: float


async def learn(
    world: World,
    client: AsyncSwarmClient,
    observer: SwarmClient,
    *,
    seed: int,
    steps: int,
    batches_at_once: int = 1,
    eval_tasks: int = EVAL_TASKS,
    progress: Callable[[int, float], object] | None = None,
) -> Learned:
    """Train `steps` steps of a rolling run, and evaluate before and after.

    :param observer: a client with the control token.
    :param seed: seed of the tasks.
    :param batches_at_once: number of batches whose episodes are open at the same time.
    :param progress: called with policy version and mean success whenever episodes of a new version
        arrive.
    :raises AjetError: the server paused the run, or episodes failed.
    """
    batch = world.recipe.batch
    by_version: dict[int, list[float]] = defaultdict(list)

    def note(result: EpisodeResult | EpisodeFailure) -> None:
        if isinstance(result, EpisodeFailure):
            return
        version = result.episode.policy_version
        if progress is not None and version not in by_version and by_version:
            last = max(by_version)
            progress(last, statistics.mean(by_version[last]))
        by_version[version].append(result.outcome.components["success"])

    async def roll_out(task_ids: list[str]) -> None:
        report = await client.run_episodes_until_all_complete(
            task_ids,
            agent,
            episodes_per_task=batch.episodes_per_task,
            concurrency=batch.episodes * batches_at_once,
            on_result=note,
        )
        if report.failures:
            raise AjetError(f"the run cannot be completed: {report}")

    async def train() -> None:
        await roll_out(world.task_ids("train", seed, steps * batch.tasks))
        for extra in itertools.count(steps * batch.tasks):
            while not _lacks_tasks(status := await asyncio.to_thread(observer.status)):
                if status.step >= steps:
                    return
                await asyncio.sleep(POLL_SECONDS)
            if status.step >= steps:
                return
            # If heartbeats are late, tasks lose their slots and get more episodes than they need.
            await roll_out(world.task_ids("train", seed, 1, start=extra))

    async def evaluate() -> float:
        held_out = world.task_ids("eval", seed, eval_tasks)
        report = await client.evaluate(held_out, agent.success, tag="held-out")
        return report.reward_mean or 0.0

    async def measure() -> Learned:
        before = await evaluate()
        began = time.monotonic()
        await train()
        seconds = time.monotonic() - began
        return Learned(before, await evaluate(), _curve(by_version, steps), seconds)

    async with WorldAgent(world) as agent:
        return await _unless_paused(measure(), observer)


def _curve(by_version: dict[int, list[float]], steps: int) -> tuple[float, ...]:
    curve: list[float] = []
    for version in range(steps):
        values = by_version.get(version)
        curve.append(statistics.mean(values) if values else (curve[-1] if curve else 0.0))
    return tuple(curve)


async def _unless_paused(working: Coroutine[object, object, T], observer: SwarmClient) -> T:
    """Return the result of `working`; fail if the run is paused, when claims would wait forever."""

    async def pause() -> str:
        while True:
            status = await asyncio.to_thread(observer.status)
            if status.state is ServerState.PAUSED:
                return status.paused or "no reason given"
            await asyncio.sleep(PAUSE_POLL_SECONDS)

    worked, paused = asyncio.ensure_future(working), asyncio.ensure_future(pause())
    try:
        await asyncio.wait([worked, paused], return_when=asyncio.FIRST_COMPLETED)
        if not worked.done():
            raise AjetError(f"the run paused: {paused.result()}")
        return worked.result()
    finally:
        worked.cancel()
        paused.cancel()
        await asyncio.gather(worked, paused, return_exceptions=True)


def _lacks_tasks(status: ServerStatus) -> bool:
    """Return whether the batch cannot be filled without more tasks."""
    batch, rollout = status.batch, status.rollout
    if batch is None or rollout is None:
        return False
    idle = status.state is ServerState.ROLLING and rollout.training_step is None
    return idle and batch.ready < batch.needed and not batch.open_episodes
