"""The loop over a dataset."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

from agentjet import train, train_async, trainable
from agentjet.agents import epochs
from agentjet.agents.progress import ProgressDisplay
from agentjet.agents.tasks import task_of
from agentjet.client import (
    AsyncSwarmClient,
    EpisodeFailure,
    EpisodeOutcome,
    EpisodeResult,
    SwarmClient,
    Task,
)
from ajet_core.errors import RequestError, StateError
from ajet_testing.faults import HoldGate
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_testing.suites.agent_suite import REPLIES
from tests.agents import plain

pytestmark = pytest.mark.processes

ONE: dict[str, Any] = {"batch": {"tasks": 2, "episodes_per_task": 2}}


@pytest.fixture
def own_swarm(tmp_path: Path):
    """One whose episodes are this test's alone."""
    with ScriptedSwarm(tmp_path / "swarm", REPLIES, **ONE) as swarm:
        yield swarm


def one(task: Any, result: Any) -> float:
    return 1.0


def groups(swarm: ScriptedSwarm) -> list[str]:
    return sorted(episode.group for episode in swarm.episodes())


def test_each_epoch_has_groups_of_its_own_and_what_is_done_is_not_done_again(
    own_swarm: ScriptedSwarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AJET_URL", own_swarm.url)
    monkeypatch.setenv("AJET_TOKEN", own_swarm.token)
    solve = trainable(plain.play, reward=one)
    seen: list[str] = []
    report = train(
        solve,
        ["a", "b"],
        epochs=2,
        progress=False,
        shuffle=1,
        on_result=lambda result: seen.append(result.task.id),
    )
    assert len(report.outcomes) == 8
    assert sorted(seen) == ["a"] * 4 + ["b"] * 4
    assert groups(own_swarm) == ["a@1", "a@1", "a@2", "a@2", "b@1", "b@1", "b@2", "b@2"]
    again = train(solve, ["a", "b"], epochs=3, progress=False, resume=True)
    assert len(again.outcomes) == 4
    assert groups(own_swarm)[2:4] == ["a@2", "a@2"]


@pytest.fixture
def roomy_swarm(tmp_path: Path):
    """Whose batches take more tasks than there are, so that what has ended waits in one."""
    batch = {"tasks": 4, "episodes_per_task": 2}
    with ScriptedSwarm(tmp_path / "swarm", REPLIES, batch=batch) as swarm:
        yield swarm


@pytest.mark.parametrize("play", [plain.play, plain.play_sync])
def test_training_again_and_again_is_as_good_as_epochs(
    roomy_swarm: ScriptedSwarm, monkeypatch: pytest.MonkeyPatch, play: Any
) -> None:
    """Groups that are complete in the open batch are not asked for more."""
    monkeypatch.setenv("AJET_URL", roomy_swarm.url)
    monkeypatch.setenv("AJET_TOKEN", roomy_swarm.token)
    solve = trainable(play, reward=one)
    for _ in range(3):
        assert len(train(solve, ["a", "b", "c"], progress=False).outcomes) == 6
    expected = {f"{name}@{epoch}": 2 for name in "abc" for epoch in (1, 2, 3)}
    assert Counter(groups(roomy_swarm)) == expected


def test_a_loop_that_numbers_its_epochs_goes_on_where_it_was(roomy_swarm: ScriptedSwarm) -> None:
    """Whether or not it is the same process, and however often."""
    solve = trainable(plain.play_sync, reward=one)
    with SwarmClient(roomy_swarm.url, roomy_swarm.token) as client:

        def loop(number: int) -> list[int]:
            return [
                len(
                    train(
                        solve,
                        ["a", "b", "c"],
                        client=client,
                        progress=False,
                        resume=True,
                        first_epoch=epoch,
                    ).outcomes
                )
                for epoch in range(1, number + 1)
            ]

        assert loop(2) == [6, 6]
        assert loop(3) == [0, 0, 6]
    assert len(roomy_swarm.episodes()) == 18


@pytest.mark.parametrize("asked_at_once", [1, 1024])
def test_epochs_begin_where_none_of_their_tasks_has_been(
    roomy_swarm: ScriptedSwarm, monkeypatch: pytest.MonkeyPatch, asked_at_once: int
) -> None:
    """However many groups the server is asked about at a time."""
    monkeypatch.setattr(epochs, "_ASKED_AT_ONCE", asked_at_once)
    solve = trainable(plain.play_sync, reward=one)
    with SwarmClient(roomy_swarm.url, roomy_swarm.token) as client:

        def epochs_of(names: list[str], number: int) -> list[str]:
            report = train(solve, names, client=client, progress=False, epochs=number)
            return sorted({str(result.task.group) for result in report.outcomes})

        assert epochs_of(["a"], 2) == ["a@1", "a@2"]
        assert epochs_of(["a", "b"], 1) == ["a@3", "b@3"]
        assert epochs_of(["b"], 3) == ["b@4", "b@5", "b@6"]


@pytest.mark.parametrize(
    ("kind", "ended_by"),
    [
        ("asynchronous", signal.SIGKILL),
        pytest.param("threads", signal.SIGINT, marks=pytest.mark.nightly),
        pytest.param("asynchronous", signal.SIGINT, marks=pytest.mark.nightly),
        pytest.param("threads", signal.SIGKILL, marks=pytest.mark.nightly),
    ],
)
def test_a_program_that_is_ended_goes_on_where_it_was(
    own_swarm: ScriptedSwarm, tmp_path: Path, kind: str, ended_by: signal.Signals
) -> None:
    standing = tmp_path / "standing"
    environ = {
        **os.environ,
        "AJET_URL": own_swarm.url,
        "AJET_TOKEN": own_swarm.token,
        "STANDING": str(standing),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    command = [sys.executable, "-m", "tests.agents.interrupted_program", kind]
    with subprocess.Popen([*command, "9"], env=environ, stderr=subprocess.PIPE) as program:
        while not standing.exists():
            assert program.poll() is None
            time.sleep(0.02)
        program.send_signal(ended_by)
        try:
            _, said = program.communicate(timeout=60)
        finally:
            program.kill()
    assert program.returncode != 0
    if ended_by == signal.SIGINT:
        assert b"KeyboardInterrupt" in said
    done = [episode for episode in own_swarm.episodes() if episode.state == "ended"]
    assert 5 <= len(done) <= 9
    again = subprocess.run([*command, "1000"], env=environ, capture_output=True, check=True)
    # The end of one may have been on its way.
    assert 24 - 9 <= int(again.stdout) <= 24 - len(done)
    ended = Counter(it.group for it in own_swarm.episodes() if it.state == "ended")
    assert ended == {f"t{i}@{epoch}": 2 for i in range(6) for epoch in (1, 2)}


def test_what_fills_no_batch_is_said(
    own_swarm: ScriptedSwarm, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AJET_URL", own_swarm.url)
    monkeypatch.setenv("AJET_TOKEN", own_swarm.token)
    train(trainable(plain.play, reward=one), ["a", "b", "c"], progress=False)
    assert "the open batch has 1 of 2 tasks: it is trained once 1 more are" in caplog.text
    caplog.clear()
    train(trainable(plain.play, reward=one), ["d"], progress=False)
    assert "the open batch" not in caplog.text


@pytest.mark.parametrize("play", [plain.play, plain.play_sync])
def test_the_step_of_the_last_batch_is_over_at_the_end(tmp_path: Path, play: Any) -> None:
    trainer = {"name": "scripted", "settings": {"hangs_at": 1}}
    ended: list[Any] = []
    with (
        HoldGate(tmp_path / "swarm" / "run", "trainer") as gate,
        ScriptedSwarm(tmp_path / "swarm", REPLIES, **ONE, trainer=trainer) as swarm,
    ):

        def sleep(seconds: float) -> None:
            # The step ends only if it is waited for.
            if len(ended) == 4:
                gate.release()
            time.sleep(seconds)

        async def sleep_async(seconds: float) -> None:
            sleep(seconds)

        client: Any
        if play is plain.play_sync:
            client = SwarmClient(swarm.url, swarm.token, sleep=sleep)
        else:
            client = AsyncSwarmClient(swarm.url, swarm.token, sleep=sleep_async)
        solve = trainable(play, reward=one)
        train(solve, ["a", "b"], client=client, progress=False, on_result=ended.append)
        with SwarmClient(swarm.url, swarm.token) as reader:
            assert reader.status().step == 1


def test_a_paused_run_is_not_waited_for(
    own_swarm: ScriptedSwarm, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        SwarmClient(own_swarm.url, own_swarm.token) as client,
        SwarmClient(own_swarm.url, own_swarm.tokens.control) as control,
    ):

        def play_and_pause(task: Any) -> float:
            plain.play_sync(task)
            control.pause_engine("the operator wants to look")
            return 1.0

        train(play_and_pause, ["a"], client=client, episodes_per_task=1, progress=False)
    assert "the run is paused: full batches are trained once it is resumed" in caplog.text


def test_functions_run_in_threads_and_agents_as_they_are(own_swarm: ScriptedSwarm) -> None:
    with SwarmClient(own_swarm.url, own_swarm.token) as client:
        report = train(
            trainable(plain.play_sync, reward=one), ["a", "b"], client=client, progress=False
        )
        assert len(report.outcomes) == 4
    other = AsyncSwarmClient(own_swarm.url, own_swarm.token)
    report = train(trainable(plain.worker, reward=one), ["a", "b"], client=other, progress=False)
    assert len(report.outcomes) == 4


def test_the_traceback_of_a_failure_begins_with_the_agent(own_swarm: ScriptedSwarm) -> None:
    async def failing(task: Any) -> float:
        raise ValueError("always")

    client = AsyncSwarmClient(own_swarm.url, own_swarm.token)
    report = train(trainable(failing, reward=one), ["a"], client=client, progress=False)
    assert all("RuntimeError" not in one.traceback for one in report.failures)
    assert all("ValueError: always" in one.traceback for one in report.failures)
    assert report.failures


async def test_what_cannot_be_trained_is_refused(own_swarm: ScriptedSwarm) -> None:
    client = AsyncSwarmClient(own_swarm.url, own_swarm.token)
    solve = trainable(plain.play, reward=one)
    with pytest.raises(RequestError, match="two tasks have the id 'a'"):
        await train_async(solve, ["a", "b", "a"], client=client)
    with pytest.raises(RequestError, match="epochs is 0"):
        await train_async(solve, ["a"], client=client, epochs=0)
    with pytest.raises(RequestError, match="first_epoch is 0"):
        await train_async(solve, ["a"], client=client, first_epoch=0)
    with pytest.raises(TypeError, match="`train`, which runs it in threads"):
        await train_async(trainable(plain.play_sync), ["a"], client=client)
    with pytest.raises(TypeError, match="requires AsyncSwarmClient"):
        train(solve, ["a"], client=SwarmClient(own_swarm.url))
    with pytest.raises(TypeError, match="await train_async"):
        train(solve, ["a"], client=client)
    with pytest.raises(RequestError, match="concurrency is 0"):
        train(solve, ["a"], client=client, concurrency=0)
    with pytest.raises(TypeError, match="requires SwarmClient"):
        train(trainable(plain.play_sync), ["a"], client=client)
    await client.close()


async def test_a_cell_of_a_notebook_trains_async_programs(
    own_swarm: ScriptedSwarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook runs its cells in an event loop."""
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    client = AsyncSwarmClient(own_swarm.url, own_swarm.token)
    report = train(trainable(plain.play, reward=one), ["a", "b"], client=client, progress=False)
    assert len(report.outcomes) == 4


async def test_an_interrupted_cell_ends_its_episodes(
    own_swarm: ScriptedSwarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    cancelled = []

    async def forever(task: Any) -> float:
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(task)
            raise
        return 0.0

    client = AsyncSwarmClient(own_swarm.url, own_swarm.token)
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            train(forever, ["a"], client=client, episodes_per_task=1, progress=False)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert cancelled == ["a"]


def test_the_run_may_be_started_by_the_loop(tmp_path: Path) -> None:
    with ScriptedSwarm(tmp_path / "swarm", REPLIES, **ONE) as swarm:
        config = swarm.config
        with SwarmClient(swarm.url, swarm.tokens.control) as control:
            control.stop_engine()
        client = AsyncSwarmClient(swarm.url, swarm.tokens.control)
        solve = trainable(plain.play, reward=one)
        report = train(solve, ["a", "b"], client=client, config=config, progress=False)
        assert len(report.outcomes) == 4


def test_without_a_run_it_says_so(tmp_path: Path) -> None:
    with ScriptedSwarm(tmp_path / "swarm", REPLIES, **ONE) as swarm:
        with SwarmClient(swarm.url, swarm.tokens.control) as control:
            control.stop_engine()
        client = AsyncSwarmClient(swarm.url, swarm.token)
        with pytest.raises(StateError):
            train(trainable(plain.play, reward=one), ["a"], client=client, progress=False)


def test_programs_that_block_run_all_at_once(tmp_path: Path) -> None:
    """However few cores there are: each waits for all the others."""
    together = threading.Barrier(16)

    @trainable(reward=one)
    async def solve(task: str) -> None:
        await asyncio.to_thread(together.wait)
        await plain.play(task)

    batch = {"tasks": 8, "episodes_per_task": 2}
    with ScriptedSwarm(tmp_path, REPLIES, batch=batch) as swarm:
        client = AsyncSwarmClient(swarm.url, swarm.token)
        names = [str(i) for i in range(8)]
        report = train(solve, names, client=client, progress=False, concurrency=16)
    assert len(report.outcomes) == 16


def test_a_program_that_hangs_takes_no_place(tmp_path: Path) -> None:
    """And nobody waits for it in the end."""
    released = threading.Event()

    @trainable(reward=one)
    async def solve(task: str) -> None:
        if task.startswith("hangs"):
            await asyncio.to_thread(released.wait)
        await asyncio.to_thread(lambda: None)
        await plain.play(task)

    with ScriptedSwarm(tmp_path, REPLIES, **ONE) as swarm:
        client = AsyncSwarmClient(swarm.url, swarm.token)
        report = train(
            solve,
            ["hangs 1", "hangs 2", "a", "b"],
            client=client,
            progress=False,
            concurrency=2,
            retries=0,
            episode_timeout=5.0,
        )
    released.set()
    assert {failure.task.id for failure in report.failures} == {"hangs 1", "hangs 2"}
    assert len(report.outcomes) == 4


async def test_loops_over_datasets_do_not_disturb_each_other(tmp_path: Path) -> None:
    """One that ends leaves the other's calls alone."""
    quick_is_done = asyncio.Event()

    @trainable(reward=one)
    async def slow(task: str) -> None:
        await plain.play(task)
        await quick_is_done.wait()
        await plain.play(task)

    batch = {"tasks": 4, "episodes_per_task": 2}
    with ScriptedSwarm(tmp_path, REPLIES, batch=batch) as swarm:
        async with AsyncSwarmClient(swarm.url, swarm.token) as client:
            waiting = asyncio.create_task(
                train_async(slow, ["a", "b"], client=client, progress=False, retries=0)
            )
            quick = trainable(plain.play, reward=one)
            report = await train_async(quick, ["c"], client=client, progress=False, retries=0)
            assert len(report.outcomes) == 2
            quick_is_done.set()
            assert len((await waiting).outcomes) == 4


def test_several_models_are_trained_on_a_dataset(tmp_path: Path) -> None:
    with (
        ScriptedSwarm(tmp_path / "planner", REPLIES, **ONE) as planners,
        ScriptedSwarm(tmp_path / "worker", REPLIES, **ONE) as workers,
    ):
        models = {
            "planner": AsyncSwarmClient(planners.url, planners.token),
            "worker": AsyncSwarmClient(workers.url, workers.token),
        }
        solve = trainable(plain.play, models=models, reward=one)
        report = train(solve, ["a", "b"], progress=False)
        assert len(report.outcomes) == 4
        for result in report.outcomes:
            assert len(planners.calls(result.episode["planner"].episode_id)) == 1
            assert len(workers.calls(result.episode["worker"].episode_id)) == 2


def test_a_group_size_that_fits_no_batch_is_said(
    own_swarm: ScriptedSwarm, caplog: pytest.LogCaptureFixture
) -> None:
    client = AsyncSwarmClient(own_swarm.url, own_swarm.token)
    solve = trainable(plain.play, reward=one)
    for size, said in ((0, "must be at least 1"), (3, "a batch takes only 2 .* Use at most 2")):
        with pytest.raises(RequestError, match=said):
            train(solve, ["a"], client=client, progress=False, episodes_per_task=size)
    train(solve, ["a"], client=client, progress=False, episodes_per_task=1)
    assert "episodes_per_task is 1, but the run's batches take 2" in caplog.text


@pytest.mark.parametrize(
    ("item", "name"),
    [
        ("short", "short"),
        ({"id": "x", "question": "?"}, "x"),
        ({"task_id": 7}, "7"),
        (Task("mine", payload=1), "mine"),
    ],
)
def test_tasks_are_called_what_they_say(item: Any, name: str) -> None:
    assert task_of(item).id == name


def test_other_tasks_are_called_by_their_content() -> None:
    first, same, other = (task_of({"q": q}).id for q in ("a", "a", "b"))
    assert first == same != other
    assert task_of("long " * 100).id.startswith("task-")
    assert task_of({"q": "a"}, lambda item: item["q"]).id == "a"


def test_progress_says_epoch_reward_and_failures() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    told: list[Any] = []
    task = Task("a", group="a@2")
    with ProgressDisplay(2, 3, show=None, also=told.append, console=console) as progress:
        progress.note(EpisodeResult(task=task, episode=None, outcome=EpisodeOutcome(reward=0.5)))
        progress.note(EpisodeFailure(task=task, attempts=1, error=ValueError(), traceback=""))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "epoch 2/3, reward 0.500, 1 failed" in shown
    assert "2/2" in shown
    assert len(told) == 2


@pytest.mark.parametrize("play", [plain.play, plain.play_sync])
def test_a_group_reward_sees_all_episodes_of_a_task(own_swarm: ScriptedSwarm, play: Any) -> None:
    seen: list[tuple[Any, int]] = []

    def shares(task: Any, results: Any) -> list[float]:
        seen.append((task, len(results)))
        return [number / (len(results) - 1) for number, _ in enumerate(results)]

    solve = trainable(play, group_reward=shares)
    client = SwarmClient if play is plain.play_sync else AsyncSwarmClient
    report = train(
        solve, ["a", "b"], client=client(own_swarm.url, own_swarm.token), epochs=2, progress=False
    )
    assert Counter(seen) == {("a", 2): 2, ("b", 2): 2}
    rewards = [(r.episode.group, r.outcome.reward) for r in report.outcomes]
    assert sorted(rewards) == [
        (f"{task}@{epoch}", reward) for task in "ab" for epoch in (1, 2) for reward in (0.0, 1.0)
    ]


def test_a_group_reward_is_one_way_to_reward(own_swarm: ScriptedSwarm) -> None:
    with pytest.raises(TypeError, match="pass one"):
        trainable(plain.play, reward=one, group_reward=lambda task, results: [])

    async def later(task: Any, results: Any) -> list[float]:
        return [1.0]

    with pytest.raises(TypeError, match="async"):
        trainable(plain.play_sync, group_reward=later)
    with SwarmClient(own_swarm.url, own_swarm.token) as client:
        solve = trainable(plain.play_sync, client, group_reward=lambda task, results: [0.25])
        assert solve.episode("c").outcome == 0.25
        report = client.run_episodes_until_all_complete(
            ["d", "e"],
            solve.rollout,
            episodes_per_task=2,
            group_reward=lambda task, results: [1.0] * len(results),
        )
        assert len(report.outcomes) == 4
        with pytest.raises(TypeError, match="group_outcomes"):
            solve.agent(Task("f"), client.begin_episode("f", kind="eval"))
