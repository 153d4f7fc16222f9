"""Runs a trial: a tiny model learns a world on a server of its own, and is then evaluated.

Whatever was killed before, the trial continues inside its run: the server resumes it, episodes that
have ended are not rolled out again, and neither are held-out tasks that have a score.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from agentjet.client import AsyncSwarmClient, Episode, EpisodeOutcome, Task
from agentjet.client import RunnerReport as Report
from ajet_core.errors import AjetError, BatchStarvedError, ConfigError
from ajet_core.files import write_whole
from ajet_core.interfaces import World
from ajet_core.protocol import ServerState
from ajet_exec import DiskFullError
from ajet_research.swarm.boxed import (
    BoxedAgent,
    BoxedReward,
    RecordedChat,
    check_room,
    open_agent,
    open_reward,
)
from ajet_research.swarm.records import CODE_FAILED, HELD_OUT, code_failure, read_run
from ajet_research.swarm.server import TrialServer
from ajet_research.swarm.settings import WORLD_AGENT, WORLD_REWARD, SwarmSettings
from ajet_worlds import load_world
from ajet_worlds.agent import WorldAgent, episode_outcome
from ajet_worlds.tiny_model import create_tiny_model

MODEL = "model"
_TURN = 0.5
_MOST_REFUSED = 10
"""Batches without a step, after all tasks of the trial were rolled out."""


def run_trial(settings: SwarmSettings, seed: int, directory: Path) -> None:
    """Run a trial to its end, or to a pause of its run, which ends it too.

    :raises AjetError: the server ended, or episodes failed; called again, the trial continues.
    :raises OSError: the disk has no room for the programs of its arm; the attempt does not count.
    """
    world = load_world(settings.world)
    if _has_ended(settings, seed, world, directory):
        return
    try:
        if settings.program_count:
            check_room(settings.program_count)
        _run(settings, seed, world, directory)
    except DiskFullError as error:
        # An arm could lose its worst trials, were it an attempt that failed.
        raise OSError(errno.ENOSPC, error.message) from error


def _run(settings: SwarmSettings, seed: int, world: World, directory: Path) -> None:
    model = directory.resolve() / MODEL
    if not model.exists():
        create_tiny_model(model, worlds=[world], seed=seed, warmup_steps=settings.warmup_steps)
    with TrialServer(directory) as server:
        if not server.start(settings.run_config(model, seed)):
            asyncio.run(_unless_stopped(_learn(settings, seed, world, server, directory), server))


def _has_ended(settings: SwarmSettings, seed: int, world: World, directory: Path) -> bool:
    """Return whether all was measured before; then no server has to start."""
    try:
        records = read_run(directory)
    except ConfigError:
        return False
    wanted = world.task_ids("eval", seed, settings.eval_tasks)
    if records.paused or code_failure(directory):
        return True
    return records.held_out(settings.train_steps).keys() >= set(wanted)


async def _learn(
    settings: SwarmSettings, seed: int, world: World, server: TrialServer, directory: Path
) -> None:
    async with (
        AsyncSwarmClient(server.url, server.client_token) as client,
        AsyncExitStack() as opened,
    ):
        code: list[BoxedAgent | BoxedReward] = []
        agent: WorldAgent | BoxedAgent
        if settings.agent == WORLD_AGENT:
            agent = await opened.enter_async_context(WorldAgent(world))
        else:
            agent = await opened.enter_async_context(
                open_agent(settings.agent, world, client, directory)
            )
            code.append(agent)
        rewarding: BoxedReward | None = None
        if settings.rewarded_by_code:
            rewarding = await opened.enter_async_context(
                open_reward(settings.reward, world, directory)
            )
            code.append(rewarding)
        try:
            trained = TrainedAgent(agent, world, settings.reward, rewarding)
            await _played(settings, seed, world, client, trained)
        except AjetError as error:
            # What the code of an arm does is an outcome, and not a fault of the machine.
            if not any(one.failed for one in code):
                if full := [one.full for one in code if one.full]:
                    raise DiskFullError(full[0]) from error
                raise
        finally:
            # Its run may pause for it, before the client gives up.
            for one in code:
                if one.failed:
                    write_whole(directory / CODE_FAILED, one.failed.encode())


async def _played(
    settings: SwarmSettings,
    seed: int,
    world: World,
    client: AsyncSwarmClient,
    trained: TrainedAgent,
) -> None:
    """Train, and then play the held-out tasks."""
    tasks = world.task_ids("eval", seed, settings.eval_tasks)
    held_out = [Task(task, tag=HELD_OUT) for task in tasks]
    if not await _train(settings, seed, world, client, trained):
        return
    _check(
        await client.run_episodes_until_all_complete(
            held_out, trained.agent.success, kind="eval", resume=True
        )
    )


async def _train(
    settings: SwarmSettings, seed: int, world: World, client: AsyncSwarmClient, agent: TrainedAgent
) -> bool:
    """Train all steps, or those that are left; return whether the run has trained them.

    It gives up once no step has ended with the tasks of many batches more: the run refuses them.
    """
    tasks_of_batch = int(settings.config["batch"]["tasks"])
    per_task = int(settings.config["batch"]["episodes_per_task"])

    async def roll_out(start: int, count: int) -> None:
        tasks = world.task_ids("train", seed, count, start=start)
        _check(
            await client.run_episodes_until_all_complete(
                tasks,
                agent,
                episodes_per_task=per_task,
                concurrency=per_task * tasks_of_batch,
                resume=True,
            )
        )

    await roll_out(0, settings.train_tasks)
    step, since = -1, settings.train_tasks
    for extra in itertools.count(settings.train_tasks):
        try:
            await client.wait_for_step(settings.train_steps)
        except BatchStarvedError:
            if (now := (await client.status()).step) > step:
                step, since = now, extra
            if extra - since >= _MOST_REFUSED * tasks_of_batch:
                return False
            # Tasks can lose their slots in a batch, such as those of an attempt that was killed.
            await roll_out(extra, 1)
        else:
            return True
    raise AssertionError


@dataclass(frozen=True, slots=True)
class TrainedAgent:
    """Plays a world, and reports the reward that the arm trains on, with the success beside it.

    :param rewarding: the program of the reward, if it is one.
    """

    agent: WorldAgent | BoxedAgent
    world: World
    reward: str
    rewarding: BoxedReward | None = None

    async def __call__(self, task: Task, episode: Episode) -> EpisodeOutcome:
        """Play the task of `task.id` with the model of `episode`."""
        chat = self.agent.chat(episode)
        if self.rewarding is not None:
            recorded = RecordedChat(chat)
            outcome = await self.world.play(task.id, recorded)
            components = {**episode_outcome(outcome).components, WORLD_REWARD: outcome.reward}
            reward = await self.rewarding.reward(recorded.turns, outcome.reward)
            return EpisodeOutcome(reward=reward, components=components)
        outcome = await self.world.play(task.id, chat)
        reported = episode_outcome(outcome)
        if self.reward == "world":
            if isinstance(self.agent, BoxedAgent):
                # The calls of a program are not known by id.
                return EpisodeOutcome(reward=reported.reward, components=reported.components)
            return reported
        low, high = self.world.reward_range
        reward = low if self.reward == "constant" else low + high - outcome.reward
        return EpisodeOutcome(reward=reward, components=reported.components)


async def _unless_stopped(learning: Coroutine[object, object, None], server: TrialServer) -> None:
    """Return when the trial has been evaluated, or its run has paused, which is an outcome.

    :raises AjetError: the server ended, or episodes failed.
    """

    async def stopped() -> None:
        async with AsyncSwarmClient(server.url, server.control_token) as control:
            while True:
                status = await control.status()
                if status.error is not None:
                    raise AjetError(f"the run failed: {status.error.message}")
                if status.state is ServerState.PAUSED or status.paused:
                    return
                await asyncio.sleep(_TURN)

    async def ended() -> None:
        # The clients retry for a minute, and would then name only the URL.
        while True:
            server.check()
            await asyncio.sleep(_TURN)

    tasks = [asyncio.ensure_future(one) for one in (learning, stopped(), ended())]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task in done:
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _check(report: Report) -> None:
    if report.failures:
        raise AjetError(f"episodes failed: {report}")
