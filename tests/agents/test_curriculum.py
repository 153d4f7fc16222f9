"""Tasks of an epoch that are chosen by their difficulty."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentjet import Curriculum, train, train_async, trainable
from agentjet.agents.curriculum import Measured
from agentjet.client import AsyncSwarmClient, Task
from ajet_core.errors import RequestError
from ajet_core.protocol import GroupCounts
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_testing.suites.agent_suite import REPLIES
from tests.agents import plain
from tests.support.tiers import examples

TASKS = [*(f"easy-{i}" for i in range(3)), *(f"hard-{i}" for i in range(3)), "some-0", "some-1"]
CHOICE = Curriculum(share=0.25, explore=0.01, seed=3)


def counts(*rewards: float, aborted: int = 0) -> GroupCounts:
    """What the server counts of a group with these rewards."""
    return GroupCounts(
        open=0,
        ended=len(rewards),
        aborted=aborted,
        reward_mean=fmean(rewards) if rewards else None,
        reward_std=pstdev(rewards) if rewards else None,
    )


def after(*epochs: dict[str, GroupCounts], kept: float = 1.0) -> Measured:
    measured = Measured()
    for of_epoch in epochs:
        measured.add(of_epoch, kept)
    return measured


def succeeding(**rates: float) -> Measured:
    """Of 40 episodes each."""
    return after(
        {
            name: counts(*[1.0] * round(40 * rate), *[0.0] * round(40 * (1 - rate)))
            for name, rate in rates.items()
        }
    )


def drawn(
    curriculum: Curriculum, measured: Measured, tasks: Sequence[Task], epochs: int = 400
) -> Counter[str]:
    return Counter(
        task.id
        for epoch in range(1, epochs + 1)
        for task in curriculum.choose(tasks, epoch, measured)
    )


def named(names: str) -> list[Task]:
    return [Task(name) for name in names]


def test_tasks_near_one_half_are_drawn() -> None:
    measured = succeeding(a=0.0, b=0.1, c=0.5, d=1.0)
    many = drawn(Curriculum(share=0.25, explore=0.001), measured, named("abcd"))
    assert many["c"] > 0.97 * 400
    assert many["a"] == many["d"] == 0
    # The task that was never rolled out is drawn more often than those that surely teach nothing.
    many = drawn(Curriculum(share=0.25, explore=0.001), measured, named("abde"))
    assert many["e"] > 300 > many["b"] > many["a"] + many["d"]


def test_both_sides_of_one_half_are_alike() -> None:
    many = drawn(
        Curriculum(share=0.25, explore=0.001), succeeding(a=0.3, b=0.7), named("ab"), epochs=2000
    )
    assert many["a"] == pytest.approx(1000, rel=0.1)


def test_most_episodes_are_of_tasks_near_one_half() -> None:
    """With rates from 0 to 1 that do not change; a uniform choice takes all alike."""
    draws = random.Random(1)
    tasks = [Task(f"{rate}", payload=rate / 20) for rate in range(21)]
    curriculum, measured = Curriculum(share=0.25), Measured()
    many = Counter[str]()
    for epoch in range(1, 61):
        chosen = curriculum.choose(tasks, epoch, measured)
        many.update(task.id for task in chosen)
        measured.add(
            {
                task.id: counts(*(float(draws.random() < task.payload) for _ in range(8)))
                for task in chosen
            },
            curriculum.kept(),
        )
    middle = sum(many[str(rate)] for rate in range(7, 14))
    assert middle / many.total() > 0.6 > 1.5 * 7 / 21
    assert min(many[str(rate)] for rate in range(21)) >= 3


def test_a_difficulty_is_a_prior() -> None:
    tasks = [Task(str(d), difficulty=d / 10) for d in range(11)]
    many = drawn(Curriculum(share=1 / 11, explore=0.001), Measured(), tasks, epochs=2000)
    assert many["5"] > 1.5 * many["0"]
    assert many["5"] > 1.5 * many["10"]
    posteriors = Measured().posteriors([*tasks, Task("unknown")], (0.0, 1.0))
    assert posteriors["0"] == (3.0, 1.0)
    assert posteriors["10"] == (1.0, 3.0)
    assert posteriors["unknown"] == (2.0, 2.0)


def test_tasks_of_a_level_share_what_was_measured() -> None:
    """As the levels of a curriculum of Reasoning Gym, of which most tasks come once."""
    levels = {"easy": 0.0, "middle": 0.5, "hard": 1.0}
    tasks = [
        Task(f"{name}-{i}", difficulty=level) for name, level in levels.items() for i in range(8)
    ]
    measured = after(
        {
            **{f"easy-{i}": counts(1.0, 0.0, 1.0, 0.0) for i in range(4)},
            **{f"middle-{i}": counts(0.0, 0.0, 0.0, 0.0) for i in range(4)},
        }
    )
    many = drawn(Curriculum(share=0.25, explore=0.001), measured, tasks)
    of_level = Counter[str]()
    for name, number in many.items():
        of_level[name.partition("-")[0]] += number
    # The easiest were taken for too easy, and are what teaches.
    assert of_level["easy"] > 2 * of_level["middle"]
    new = {name: measured.posteriors(tasks, (0.0, 1.0))[f"{name}-7"] for name in levels}
    assert new["easy"] == (1 + 2 * 10 / 18, 1 + 2 * 8 / 18)
    assert new["middle"] == (1 + 2 * 1 / 18, 1 + 2 * 17 / 18)
    assert new["hard"] == (1.0, 3.0)


def test_tags_do_not_share_a_prior() -> None:
    tasks = [Task("a", tag="math"), Task("b", tag="math"), Task("c", tag="code")]
    measured = after({"a": counts(1.0, 1.0)})
    posteriors = measured.posteriors(tasks, (0.0, 1.0))
    assert posteriors["b"] == (2.5, 1.5)
    assert posteriors["c"] == (2.0, 2.0)


def test_a_difficulty_out_of_range_is_an_error() -> None:
    with pytest.raises(RequestError, match="'a' has the difficulty 3"):
        Curriculum().choose([Task("a", difficulty=3)], 1, Measured())


def test_newer_rewards_count_more() -> None:
    measured = after({"a": counts(0.0, 0.0)}, {"a": counts(1.0, 1.0)}, kept=0.5)
    assert measured.success_rate("a", (0.0, 1.0)) == pytest.approx(2 / 3)
    # They count half after four passes, so a share of one half needs eight epochs.
    assert Curriculum(share=0.5).kept() ** 8 == pytest.approx(0.5)


def test_equal_rewards_are_never_one_half() -> None:
    measured = after({"part": counts(0.5, 0.5, 0.5), "differ": counts(0.0, 1.0)})
    assert measured.success_rate("part", (0.0, 1.0)) == 1.0
    assert measured.success_rate("differ", (0.0, 1.0)) == 0.5
    many = drawn(Curriculum(share=0.5, explore=0.001), succeeding(a=0.5), [Task("a"), Task("part")])
    assert many["a"] >= many["part"]


@pytest.mark.parametrize(("least", "greatest"), [(-1.0, 1.0), (0.0, 5.0), (-3.0, 0.0)])
def test_rewards_of_another_range_widen_it(least: float, greatest: float) -> None:
    mixed = {"a": counts(least, greatest), "b": counts(least, least, least, greatest)}
    measured = after({**mixed, "c": counts(least, least), "d": counts(greatest, greatest)})
    expected = {"a": pytest.approx(0.5), "b": pytest.approx(0.25)}
    assert {name: measured.success_rate(name, (least, greatest)) for name in "ab"} == expected
    if least <= 0.0 and greatest >= 1.0:
        assert {name: measured.success_rate(name, (0.0, 1.0)) for name in "ab"} == expected


def test_tasks_that_are_only_aborted_count_as_failed() -> None:
    measured = after({"a": counts(aborted=8), "b": counts(1.0, 0.0, aborted=8)})
    assert measured.success_rate("a", (0.0, 1.0)) is None
    assert measured.last == {"a": 1, "b": 1}
    posteriors = measured.posteriors([Task("a", tag="a"), Task("b", tag="b")], (0.0, 1.0))
    assert posteriors["a"] == (1 + 2 * 1 / 10, 1 + 2 * 9 / 10 + 8)
    assert posteriors["b"] == (3.0, 3.0)


def test_an_epoch_is_drawn_again_as_it_was() -> None:
    tasks, measured = [Task(str(number)) for number in range(40)], succeeding(**{"1": 0.5})
    curriculum = Curriculum(share=0.3, seed=3)
    first = [task.id for task in curriculum.choose(tasks, 1, measured)]
    assert len(set(first)) == len(first) == 12
    assert [task.id for task in curriculum.choose(tasks, 1, measured)] == first
    assert [task.id for task in curriculum.choose(tasks, 2, measured)] != first
    assert [task.id for task in Curriculum(share=0.3, seed=4).choose(tasks, 1, measured)] != first


GROUPS = st.lists(st.sampled_from([0.0, 0.5, 1.0]), max_size=4).map(lambda some: counts(*some))


@settings(deadline=None, max_examples=examples(30))
@given(
    names=st.sets(st.text("abcde", min_size=1), min_size=1, max_size=12),
    share=st.floats(0.1, 1.0),
    explore=st.floats(0.2, 1.0),
    data=st.data(),
)
def test_every_task_comes_again_whatever_its_rewards(
    names: set[str], share: float, explore: float, data: st.DataObject
) -> None:
    """And each epoch has as many tasks as it should, each once, in whichever order they are."""
    tasks = [Task(name, difficulty=data.draw(st.sampled_from([None, 0.0, 1.0]))) for name in names]
    curriculum = Curriculum(share=share, explore=explore)
    rewards = {name: data.draw(GROUPS) for name in sorted(names)}
    places = max(1, round(share * len(names)))
    # After that many places by waiting alone, each task had one.
    longest = math.ceil((len(names) + 1) / (explore * places)) + 1
    measured, last = Measured(), dict.fromkeys(names, 0)
    for epoch in range(1, 2 * longest + 1):
        chosen = curriculum.choose(tasks, epoch, measured)
        assert len({task.id for task in chosen}) == len(chosen) == places
        assert curriculum.choose(tasks[::-1], epoch, measured) == chosen
        # A task may be aborted before it has any reward.
        measured.add(
            {
                task.id: rewards[task.id] if rewards[task.id].ended else counts(aborted=1)
                for task in chosen
            },
            curriculum.kept(),
        )
        last |= {task.id: epoch for task in chosen}
        assert epoch - min(last.values()) <= longest


@settings(deadline=None)
@given(
    groups=st.lists(
        st.dictionaries(st.sampled_from("abc"), GROUPS, min_size=1), min_size=1, max_size=5
    ),
    factor=st.sampled_from([0.25, 1.0, 8.0]),
    offset=st.sampled_from([-4.0, 0.0, 2.0]),
)
def test_what_is_measured_does_not_depend_on_the_scale_of_rewards(
    groups: list[dict[str, GroupCounts]], factor: float, offset: float
) -> None:
    def scaled(its: GroupCounts) -> GroupCounts:
        if its.reward_mean is None or its.reward_std is None:
            return its
        changed = {
            "reward_mean": offset + factor * its.reward_mean,
            "reward_std": factor * its.reward_std,
        }
        return its.model_copy(update=changed)

    tasks = named("abc")
    plain = after(*groups, kept=0.5)
    other = after(*({name: scaled(its) for name, its in some.items()} for some in groups), kept=0.5)
    expected = plain.posteriors(tasks, (0.0, 1.0))
    got = other.posteriors(tasks, (offset, offset + factor))
    episodes = sum(its.ended for some in groups for its in some.values())
    for name in "abc":
        # The root of a difference of nearly equal numbers has half of their digits.
        assert got[name] == pytest.approx(expected[name], abs=1e-5)
        assert all(1 <= one <= 1 + 2 + episodes for one in expected[name])


@pytest.mark.parametrize(
    "arguments",
    [{"share": 0}, {"share": 1.5}, {"explore": 0.0}, {"rewards": (1.0, 1.0)}],
)
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
    # A uniform choice would take them four times.
    assert sum(group.startswith("some-") for group in rolled) / 2 >= 6
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
    # Such tasks count as failed, so they do not take the places of the others.
    failed = {(failure.task.id, failure.task.group) for failure in report.failures}
    assert len(failed) <= 9
    assert len(report.outcomes) >= 18
    single = train(solve, TASKS[3:], episodes_per_task=1, progress=False, curriculum=choice)
    assert len(single.outcomes) == 2
