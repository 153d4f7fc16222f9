"""The demo's client, with a swarm client and an agent that are scripted."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from agentjet.client import (
    Episode,
    EpisodeFailure,
    EpisodeOutcome,
    EpisodeResult,
    RunnerReport,
    Task,
)
from ajet_core.errors import AjetError
from ajet_demo.client_main import DemoClient
from ajet_demo.lines import DoneLine, EvalLine, Line, TrainLine, parse_line
from ajet_demo.recipe import EVAL_EPISODES, eval_task_ids, train_task_ids

BATCH = 64


class Swarm:
    """A swarm whose success after n steps is `success[n]`.

    :param stale_after: how many episodes of the first batch the server still takes.
    """

    def __init__(
        self, success: Sequence[float], *, step: int = 0, stale_after: int = BATCH, broken: int = 0
    ) -> None:
        self.success = success
        self.step = step
        self.stale_after = stale_after
        self.broken = broken
        self.trained: list[list[str]] = []
        self.evaluated: list[list[str]] = []

    async def status(self) -> Any:
        return SimpleNamespace(step=self.step)

    async def run_episodes_until_all_complete(
        self, tasks: Sequence[str], agent: Any, *, concurrency: int, kind: str, **_: Any
    ) -> RunnerReport:
        (self.trained if kind == "train" else self.evaluated).append(list(tasks))
        version, results, failures = self.step, [], []
        for number, task_id in enumerate(tasks):
            if kind == "train" and number == self.stale_after:
                version += 1
            task, episode = Task(task_id), self.episode(task_id, version)
            try:
                if number < self.broken:
                    raise ValueError("broken agent")
                outcome = await agent(task, episode)
            except Exception as error:  # noqa: BLE001 - as the real runner does
                failures.append(
                    EpisodeFailure(task=task, attempts=1, error=error, traceback=str(error))
                )
            else:
                results.append(EpisodeResult(task=task, episode=episode, outcome=outcome))
        self.broken = 0 if kind == "train" else self.broken
        if kind == "train" and len(results) + len(failures) >= BATCH:
            self.step += 1
            self.stale_after = BATCH
        return RunnerReport(outcomes=results, failures=failures, elapsed=1.0)

    def episode(self, task_id: str, version: int) -> Episode:
        return Episode(
            episode_id=task_id,
            task_id=task_id,
            group=task_id,
            kind="train",
            base_url="",
            api_key="k",
            model="m",
            policy_version=version,
            lease_seconds=1,
        )

    async def agent(self, task: Task, episode: Episode) -> EpisodeOutcome:
        success = self.success[self.step]
        return EpisodeOutcome(
            reward=success, components={"success": success, "invalid": 0.0, "moves": 4.0}
        )


async def run(swarm: Any, *, target: float = 0.9, steps: int = 10) -> list[Line]:
    lines: list[Line] = []
    client = DemoClient(swarm, swarm.agent, seed=3, emit=lines.append, clock=lambda: 0.0)
    await client.run(target=target, steps=steps)
    return lines


async def test_it_evaluates_trains_and_stops_at_the_target() -> None:
    swarm = Swarm([0.2, 0.5, 0.89, 0.95, 0.97])
    lines = await run(swarm)
    assert [type(line) for line in lines] == [
        EvalLine,
        TrainLine,
        TrainLine,
        TrainLine,
        TrainLine,
        EvalLine,
        DoneLine,
    ]
    done = lines[-1]
    assert isinstance(done, DoneLine)
    assert (done.step, done.success, done.reached) == (4, pytest.approx(0.97), True)


async def test_tasks_are_new_each_step_and_the_held_out_ones_never_trained() -> None:
    swarm = Swarm([0.2, 0.5, 0.95, 0.97, 0.97])
    await run(swarm, steps=3)
    assert [sorted(set(ids)) for ids in swarm.trained] == [
        sorted(train_task_ids(3, step)) for step in (1, 2, 3)
    ]
    assert {len(ids) for ids in swarm.trained} == {BATCH}
    assert swarm.evaluated[0] == eval_task_ids(3)
    assert len(set(eval_task_ids(3))) == EVAL_EPISODES
    assert not set(eval_task_ids(3)) & {i for ids in swarm.trained for i in ids}


async def test_it_ends_with_an_evaluation_when_the_steps_are_used_up() -> None:
    lines = await run(Swarm([0.2] * 10), steps=2)
    assert [type(line) for line in lines[-2:]] == [EvalLine, DoneLine]
    done = lines[-1]
    assert isinstance(done, DoneLine)
    assert (done.step, done.reached) == (2, False)


async def test_it_goes_on_at_the_servers_step() -> None:
    swarm = Swarm([0.2] * 5 + [0.95] * 5, step=4)
    lines = await run(swarm, steps=6)
    assert [line.step for line in lines] == [4, 5, 6, 6, 6]


async def test_a_run_that_has_reached_its_target_only_evaluates() -> None:
    swarm = Swarm([0.95] * 9, step=4)
    assert [type(line) for line in await run(swarm)] == [EvalLine, DoneLine]
    assert swarm.trained == []


async def test_episodes_the_server_needs_no_more_after_a_restart_are_let_go() -> None:
    swarm = Swarm([0.2] * 9, step=4, stale_after=24)
    lines = await run(swarm, steps=5)
    trained = [line for line in lines if isinstance(line, TrainLine)]
    assert [(line.step, line.episodes) for line in trained] == [(5, 24)]


async def test_failed_episodes_are_made_up_for() -> None:
    swarm = Swarm([0.2] * 9, broken=0)
    swarm.broken = 3
    with pytest.raises(AjetError, match="3 episodes failed 4 times in a row"):
        await run(swarm, steps=1)
    assert [len(ids) for ids in swarm.evaluated] == [64, 3, 3, 3]


@pytest.mark.parametrize(
    "line",
    [
        EvalLine(step=0, success=0.2, reward=0.1, episodes=64, seconds=1.0),
        TrainLine(step=1, success=1, reward=1, invalid=0, moves=3, episodes=64, seconds=1),
        DoneLine(step=9, success=0.9, reached=True),
    ],
)
def test_lines_survive_the_pipe(line: Line) -> None:
    assert parse_line(line.model_dump_json()) == line
