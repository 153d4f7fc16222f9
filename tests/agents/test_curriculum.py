"""Tasks of an epoch that are chosen by their difficulty."""

from __future__ import annotations

from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from agentjet import Curriculum, train, train_async, trainable
from agentjet.agents.curriculum import Spreads
from agentjet.client import AsyncSwarmClient, Task
from ajet_core.errors import RequestError
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_testing.suites.agent_suite import REPLIES
from tests.agents import plain

TASKS = [*(f"easy-{i}" for i in range(3)), *(f"hard-{i}" for i in range(3)), "some-0", "some-1"]
CHOICE = Curriculum(share=0.25, least=1e-6, seed=1)


def drawn(curriculum: Curriculum, spreads: dict[str, float], epochs: int = 3000) -> Counter[str]:
    tasks = [Task(name) for name in ("a", "b", "c", "d")]
    return Counter(
        task.id for epoch in range(epochs) for task in curriculum.choose(tasks, epoch, spreads)
    )


def test_tasks_are_drawn_by_how_much_their_rewards_differ() -> None:
    counts = drawn(Curriculum(share=0.25, least=0.1), {"a": 0.5, "b": 0.25, "c": 0.0, "d": 0.0})
    weights = {"a": 1.1, "b": 0.6, "c": 0.1, "d": 0.1}
    for name, weight in weights.items():
        assert counts[name] == pytest.approx(3000 * weight / 1.9, rel=0.25)


def test_without_a_difference_all_are_drawn_alike() -> None:
    counts = drawn(Curriculum(share=0.5), dict.fromkeys("abcd", 0.0))
    assert min(counts.values()) > 0.9 * max(counts.values())


def test_tasks_that_were_never_rolled_out_come_first() -> None:
    counts = drawn(Curriculum(share=0.5), {"a": 0.5, "b": 0.5}, epochs=50)
    assert counts == {"c": 50, "d": 50}


def test_an_epoch_is_drawn_again_as_it_was() -> None:
    tasks, spreads = [Task(str(number)) for number in range(40)], {"1": 0.5}
    curriculum = Curriculum(share=0.3, seed=3)
    first = [task.id for task in curriculum.choose(tasks, 1, spreads)]
    assert len(set(first)) == len(first) == 12
    assert [task.id for task in curriculum.choose(tasks, 1, spreads)] == first
    assert [task.id for task in curriculum.choose(tasks, 2, spreads)] != first


def test_newer_rewards_count_more() -> None:
    spreads = Spreads()
    for spread in (0.4, 0.0, 0.2):
        spreads.add({"a": spread})
    assert spreads.by_task == {"a": pytest.approx(0.2)}


def test_tasks_whose_program_fails_do_not_come_first_again() -> None:
    spreads = Spreads()
    spreads.add({"a": None, "b": 0.5, "c": 0.25, "d": 0.25})
    spreads.add({"c": None})
    assert spreads.by_task == {"a": 0.0, "b": 0.5, "c": 0.25, "d": 0.25}
    counts = drawn(Curriculum(share=0.25, least=0.1), spreads.by_task)
    assert counts["a"] < 0.2 * counts["b"]


@pytest.mark.parametrize("arguments", [{"share": 0}, {"share": 1.5}, {"least": 0.0}])
def test_arguments_out_of_range(arguments: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=next(iter(arguments))):
        Curriculum(**arguments)


def rewarding() -> Any:
    """A program whose episodes of some tasks differ in their rewards."""
    turns = {name: count() for name in TASKS}

    def reward(task: str, _: Any) -> float:
        kind = task.partition("-")[0]
        return {"easy": 1.0, "hard": 0.0}.get(kind, float(next(turns[task]) % 2))

    return trainable(plain.play, reward=reward)


@pytest.fixture
def swarms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make servers, each of which the environment names until the next one is made."""
    made: list[ScriptedSwarm] = []

    def make() -> ScriptedSwarm:
        batch = {"tasks": 2, "episodes_per_task": 2}
        swarm = ScriptedSwarm(tmp_path / str(len(made)), REPLIES, batch=batch)
        made.append(swarm)
        swarm.__enter__()
        monkeypatch.setenv("AJET_URL", swarm.url)
        monkeypatch.setenv("AJET_TOKEN", swarm.token)
        return swarm

    yield make
    for swarm in made:
        swarm.__exit__(None, None, None)


def groups(swarm: ScriptedSwarm) -> list[str]:
    return sorted(episode.group for episode in swarm.episodes())


@pytest.mark.processes
def test_what_differs_comes_more_often_and_another_process_continues(swarms: Any) -> None:
    whole = swarms()
    report = train(rewarding(), TASKS, epochs=8, progress=False, curriculum=CHOICE)
    assert len(report.outcomes) == 8 * 2 * 2
    rolled = groups(whole)
    # Each task once, then those that differ.
    first = {group.partition("@")[0] for group in rolled if int(group[-1]) <= 4}
    assert first == set(TASKS)
    assert {group for group in rolled if int(group[-1]) > 4} == {
        f"some-{task}@{epoch}" for task in (0, 1) for epoch in range(5, 9)
    }
    parted = swarms()
    for epochs in (3, 3, 2):
        train(rewarding(), TASKS, epochs=epochs, progress=False, curriculum=CHOICE)
    assert groups(parted) == rolled


@pytest.mark.processes
async def test_an_async_loop_resumes(swarms: Any) -> None:
    swarm = swarms()
    async with AsyncSwarmClient() as client:
        options: dict[str, Any] = {"client": client, "progress": False, "curriculum": CHOICE}
        await train_async(rewarding(), TASKS, epochs=5, **options)
        again = await train_async(rewarding(), TASKS, epochs=6, resume=True, **options)
    assert len(again.outcomes) == 4
    assert {group.partition("@")[2] for group in groups(swarm)} == set("123456")


@pytest.mark.processes
def test_failures_and_single_episodes(swarms: Any) -> None:
    swarms()

    turns = count()

    def fail(task: str, _: Any) -> float:
        if task.startswith("easy"):
            raise ValueError("no reward")
        return float(next(turns) % 2)

    solve = trainable(plain.play, reward=fail)
    choice = Curriculum(share=0.375, seed=2)
    report = train(solve, TASKS, epochs=6, retries=0, progress=False, curriculum=choice)
    failed = Counter(failure.task.id for failure in report.failures)
    # Each was tried once before any came again.
    assert max(failed.values()) <= 6
    assert len({result.task.id for result in report.outcomes}) == 5
    with pytest.raises(RequestError, match="at least 2"):
        train(solve, TASKS, episodes_per_task=1, progress=False, curriculum=choice)
