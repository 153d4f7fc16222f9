"""Arms that are code: it is registered by its bytes, and runs in a sandbox alone."""

from __future__ import annotations

import abc
import errno
import hashlib
import json
import random
import shutil
import socket
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from agentjet.client import AsyncSwarmClient, Task
from ajet_core.errors import ConfigError, RequestError, SandboxError, StoreError
from ajet_core.interfaces import BoxExit, Chat, WorldAnswer, WorldCall, WorldPrompt
from ajet_core.protocol import EndRequest
from ajet_exec import DiskBudgetError, DiskFullError, NoCallsError
from ajet_research.arenas import MOST_CODE, CodeFiles, read_evidence
from ajet_research.events import Registered
from ajet_research.leader import run_study
from ajet_research.ledger import LEDGER, read_ledger
from ajet_research.registration import register
from ajet_research.replicating import replicate_study
from ajet_research.runners import FileRunner
from ajet_research.study import Scalar
from ajet_research.suites.attacks import HONEST_ARM
from ajet_research.swarm import SwarmArena, boxed
from ajet_research.swarm import server as server_of_trial
from ajet_research.swarm import trial as trials
from ajet_research.swarm.arena import _evidence
from ajet_research.swarm.records import CODE_FAILED, HELD_OUT, EndedEpisode, RunRecords, read_run
from ajet_research.swarm.server import LOG, MAX_REWARD, TrialServer
from ajet_research.swarm.settings import WORLD_REWARD, parsed
from ajet_research.swarm.trial import TrainedAgent
from ajet_research.verifying import verify_study
from ajet_research.worker import STORE
from ajet_server.service import _check_size
from ajet_worlds import load_world
from ajet_worlds.tiny_model import create_tiny_model
from tests.exec.usable import small_disk
from tests.research.studies import study
from tests.research.test_swarm import SCRIPTED, replies, scripted, trial

__all__ = ["scripted"]

OTHER = "# The same, under another name.\n" + HONEST_ARM
HOSTILE = (Path(__file__).parent / "hostile_agent.py").read_text()
RIGHT = replies(right=True)
SHADOWED = Path(abc.__file__).with_name("this.py")
"""A module that the interpreter does not need: it stands for an installed world."""
needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")


def code_study(first: str = "arms/a.py", second: str = "arms/b.py", **base: Scalar) -> Any:
    """A study whose arms are the code of two files."""
    levels = [f"code:{first}", f"code:{second}"]
    return study(
        base={
            "arena": "swarm",
            "set": {**SCRIPTED, "engine.settings": RIGHT, **base},
        },
        factors={"program": {"path": "agent", "levels": levels}},
        outcome={"metric": "success", "smallest": 0.2},
        inference={"looks": [{"seeds": 2, "alpha": 0.5}], "alpha": 0.5, "repeats": 0},
        compare=[
            {"id": "b-vs-a", "arm": {"program": levels[1]}, "against": {"program": levels[0]}}
        ],
        budget={"trials": 4, "trial_seconds": 600, "compute_hours": 1},
    )


def arms(directory: Path, first: str = HONEST_ARM, second: str = OTHER) -> Path:
    """Write the code of two arms, and return their directory."""
    (directory / "arms").mkdir(parents=True, exist_ok=True)
    (directory / "arms/a.py").write_text(first, encoding="utf-8")
    (directory / "arms/b.py").write_text(second, encoding="utf-8")
    return directory


class Full(FileRunner):
    """A machine on which nothing can run."""

    def poll(self, *_: Any) -> Any:
        raise OSError(errno.ENOSPC, "full")


def first_row(directory: Path) -> Registered:
    event = next(iter(read_ledger(directory / LEDGER))).event
    assert isinstance(event, Registered)
    return event


# --- Registration ---------------------------------------------------------------------------------


def test_a_trial_has_the_bytes_of_its_arm(tmp_path: Path) -> None:
    registration = register(code_study(), arms(tmp_path))
    assert registration.files == {"arms/a.py": HONEST_ARM, "arms/b.py": OTHER}
    agents = {one.settings["agent"] for one in registration.blueprints.values()}
    assert agents == {f"code:{HONEST_ARM}", f"code:{OTHER}"}
    before = list(registration.blueprints)
    arms(tmp_path, second=OTHER + "\n")
    after = register(code_study(), tmp_path).blueprints
    assert len(set(before) & set(after)) == 2


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("arms/c.py", "There is no code arms/c.py in "),
        ("../a.py", "needs a path below the study file"),
        ("/etc/passwd", "needs a path below the study file"),
        ("arms/.hidden", "needs a path below the study file"),
        ("arms/link.py", "needs a path below the study file"),
        ("arms/large.py", f"cannot be read as text of at most {MOST_CODE} bytes"),
        ("arms/binary.py", f"cannot be read as text of at most {MOST_CODE} bytes"),
        ("arms", f"cannot be read as text of at most {MOST_CODE} bytes"),
    ],
)
def test_code_that_cannot_be_registered_is_refused(path: str, problem: str, tmp_path: Path) -> None:
    place = arms(tmp_path / "study")
    (tmp_path / "a.py").write_text(HONEST_ARM)
    (place / "arms/link.py").symlink_to(tmp_path / "a.py")
    (place / "arms/large.py").write_text("#" * (MOST_CODE + 1))
    (place / "arms/binary.py").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=problem):
        register(code_study(second=path), place)


def test_two_files_with_the_same_bytes_are_one_arm(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="have the same settings once they are resolved"):
        register(code_study(), arms(tmp_path, second=HONEST_ARM))


def test_only_settings_for_programs_are_files(tmp_path: Path) -> None:
    its: dict[str, Scalar] = {"agent": "world", "world": "code:arms/a.py"}
    assert CodeFiles(tmp_path).filled(SwarmArena(), its) == its
    with pytest.raises(ConfigError, match="'agent' is 'world', or 'code:' and the path"):
        SwarmArena().resolve({"agent": "arms/a.py"})
    with pytest.raises(ConfigError, match="constant; or 'code:' and the path"):
        SwarmArena().resolve({"reward": "arms/a.py"})


def test_without_a_sandbox_code_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ajet_backend_torch")
    source = arms(tmp_path) / "study.json"
    source.write_text(code_study().model_dump_json(by_alias=True))
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    refusal = (
        "The arm program=.* cannot run here: code of an arm runs in a sandbox alone, and there"
    )
    with pytest.raises(ConfigError, match=f"{refusal} is none: .*bwrap.* Install bubblewrap"):
        run_study(source, tmp_path / "study")
    assert not (tmp_path / "study").exists()


async def test_a_sandbox_in_which_python_cannot_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        isolated = True

        async def run(self, program: Any, **_: float) -> BoxExit:
            program.stderr.write_text("no such file")
            return BoxExit(status=127, timed_out=False, seconds=0.0)

    monkeypatch.setattr(boxed, "load_sandbox", lambda *_: Broken())
    with pytest.raises(SandboxError, match="Python cannot run in the sandbox: no such file"):
        await boxed.check_sandbox(tmp_path)
    monkeypatch.setattr(Broken, "isolated", False)
    with pytest.raises(SandboxError, match="does not isolate"):
        boxed._sandbox()


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("2\n", WorldAnswer("2")),
        ('"2"', WorldAnswer('"2"')),
        ('{"text": "2"}', WorldAnswer("2")),
        (
            '{"calls": [{"name": "go", "arguments": {"to": 1}}]}',
            WorldAnswer("", (WorldCall("go", '{"to": 1}', "call-0"),)),
        ),
        ('{"calls": 5}', WorldAnswer('{"calls": 5}')),
        ('{"calls": [{"name": "go"}]}', WorldAnswer('{"calls": [{"name": "go"}]}')),
        ('{"reward": 1}', WorldAnswer('{"reward": 1}')),
        ("[" * 100_000, WorldAnswer("[" * 100_000)),
        ('{"text": "\\ud800"}', WorldAnswer("?")),
        (
            '{"calls": [{"name": "\\udfff", "arguments": null}]}',
            WorldAnswer("", (WorldCall("?", "null", "call-0"),)),
        ),
    ],
    ids=range(10),
)
def test_what_a_program_prints_is_its_answer(text: str, answer: WorldAnswer) -> None:
    assert boxed._answer(text) == answer


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (
            NoCallsError(
                "the program ended with status 1 and made no call", "arm b is superior its-key"
            ),
            "the program ended with status 1 and made no call",
        ),
        (DiskBudgetError("1.5 GiB"), "the program wrote more than 1024 MiB of files"),
    ],
    ids=["no call", "disk"],
)
async def test_what_a_program_does_is_a_failure_of_its_arm_without_its_words(
    error: Exception, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Program:
        async def agent(self, *_: object) -> None:
            raise error

    agent = boxed.BoxedAgent(load_world("bandit"), cast("Any", Program()))
    prompt = WorldPrompt([{"role": "user", "content": "lamp 0"}], max_tokens=4)
    episode: Any = SimpleNamespace(redact=lambda text: text.replace("its-key", "***"))
    for _ in range(2):
        with pytest.raises(boxed.ArmFailedError, match=f"^the agent: {why}$"):
            await agent.answer(prompt, episode)
    assert "its-key" not in "".join(one.getMessage() for one in caplog.records)
    assert agent.failed == f"the agent: {why}"
    # They are in the log of the trial.
    assert caplog.text.count("superior") == isinstance(error, NoCallsError)


async def test_a_fault_of_the_sandbox_is_none_of_the_arm() -> None:
    class Program:
        async def agent(self, *_: object) -> None:
            raise SandboxError("the disk is full")

    agent = boxed.BoxedAgent(load_world("bandit"), cast("Any", Program()))
    with pytest.raises(SandboxError, match="is full"):
        await agent.answer(WorldPrompt([], max_tokens=4), cast("Any", None))
    assert (agent.failed, agent.full) == ("", "")


class Box:
    """A sandbox in which a program prints a text and ends."""

    def __init__(self, printed: str = "", status: int = 0, timed_out: bool = False) -> None:
        self.asked: list[Any] = []
        self._printed, self._ended = (
            printed,
            BoxExit(status=status, timed_out=timed_out, seconds=0.0),
        )

    async def run(self, program: Any, **_: float) -> BoxExit:
        assert (program.endpoints, program.host_network) == ({}, False)
        self.asked.append(json.loads(program.stdin.read_text()))
        program.stdout.write_text(self._printed)
        program.stderr.write_text("arm b is superior")
        return self._ended


NO_NUMBER = "something else than one finite number"
TURNS = [
    (WorldPrompt([{"role": "user", "content": "lamp 0"}]), WorldAnswer("2")),
    (WorldPrompt([], agent="critic"), WorldAnswer("", (WorldCall("go", "{}", "call-0"),))),
]


async def rewarded(tmp_path: Path, box: Box, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The reward of an episode by a program that ends as `box` does."""
    monkeypatch.setattr(boxed, "_sandbox", lambda: box)
    async with boxed.open_reward("code:print(1)", load_world("bandit"), tmp_path) as its:
        return await its.reward(TURNS, 0.25)


@pytest.mark.processes
async def test_a_program_rewards_the_turns_of_an_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = Box(" -2.5e-1\n")
    assert await rewarded(tmp_path, box, monkeypatch) == -0.25
    first, second = box.asked[0].pop("turns")
    assert box.asked == [{"reward": 0.25}]
    assert first == {
        "messages": [{"role": "user", "content": "lamp 0"}],
        "agent": "",
        "text": "2",
        "calls": [],
    }
    assert (second["agent"], second["calls"]) == ("critic", [{"name": "go", "arguments": "{}"}])


@pytest.mark.processes
@pytest.mark.parametrize(
    ("box", "why"),
    [
        *((Box(text), "something else than one finite number") for text in ("", "inf", "nan")),
        *(
            (Box(text), "something else than one finite number")
            for text in ("1 2", '{"reward": 1}')
        ),
        *((Box(text), "a reward that is too large") for text in ("2e6", "-1000001", "1e308")),
        (Box("1", status=3), "the program ended with status 3"),
        (Box("1", status=137, timed_out=True), "was stopped after its time limit"),
    ],
    ids=range(10),
)
async def test_a_program_that_gives_no_reward_is_a_failure_of_its_arm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, box: Box, why: str
) -> None:
    with pytest.raises(boxed.ArmFailedError, match=f"^the reward: .*{why}$"):
        await rewarded(tmp_path, box, monkeypatch)


@pytest.mark.processes
@pytest.mark.parametrize("text", ["1e6", "-1000000.0", "1e-320", "-0.0"])
async def test_all_rewards_that_the_server_accepts_are_rewards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    reward = await rewarded(tmp_path, Box(text), monkeypatch)
    assert reward == float(text)
    request = EndRequest.model_validate_json(EndRequest(reward=reward).model_dump_json())
    _check_size(request, MAX_REWARD)


@pytest.mark.processes
async def test_a_program_that_failed_rewards_no_other_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = Box("superior")
    monkeypatch.setattr(boxed, "_sandbox", lambda: box)
    async with boxed.open_reward("code:print(1)", load_world("bandit"), tmp_path) as its:
        for _ in range(2):
            with pytest.raises(boxed.ArmFailedError):
                await its.reward(TURNS, 0.25)
        assert its.failed == "the reward: the program printed something else than one finite number"
    assert len(box.asked) == 1


@pytest.mark.processes
async def test_a_disk_that_others_fill_is_no_failure_of_an_arm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        isolated = True

        async def run(self, *_: object, **__: object) -> BoxExit:
            raise OSError(errno.ENOSPC, "no room")

        async def agent(self, *_: object) -> None:
            raise DiskFullError("the disk is full: no room")

    agent = boxed.BoxedAgent(load_world("bandit"), cast("Any", Full()))
    with pytest.raises(DiskFullError):
        await agent.answer(WorldPrompt([], max_tokens=4), cast("Any", None))
    assert (agent.failed, agent.full) == ("", "the disk is full: no room")
    monkeypatch.setattr(boxed, "_sandbox", Full)
    async with boxed.open_reward("code:print(1)", load_world("bandit"), tmp_path) as reward:
        with pytest.raises(DiskFullError):
            await reward.reward(TURNS, 0.25)
        assert (reward.failed, reward.full) == ("", "the disk is full: [Errno 28] no room")


@pytest.mark.processes
async def test_a_reward_that_fills_the_disk_is_a_failure_of_its_arm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Filling(Box):
        async def run(self, program: Any, **_: float) -> BoxExit:
            (program.work / "file").write_bytes(bytes(2**16))
            raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(boxed, "_DISK_BYTES", 2**15)
    with pytest.raises(boxed.ArmFailedError, match=r"^the reward: .* wrote more than"):
        await rewarded(tmp_path, Filling(), monkeypatch)


def test_a_trial_needs_room_for_all_that_its_programs_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ajet_backend_torch")
    free = shutil.disk_usage(tempfile.gettempdir()).free
    # Room for one program, and not for two.
    monkeypatch.setattr(boxed, "_DISK_BYTES", free * 2 // 3)
    boxed.check_room(1)
    its = trial(agent=f"code:{HONEST_ARM}", reward="code:print(1)")
    with pytest.raises(OSError, match=r"the disk of .* is full: .* MiB are needed") as raised:
        SwarmArena().run(its, tmp_path)
    assert raised.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SandboxError, match="MiB are needed"):
        SwarmArena().check_machine(its.settings)


async def test_an_arm_trains_on_the_reward_of_a_program_and_keeps_that_of_the_world() -> None:
    class Right(Chat):
        async def ask(self, prompt: WorldPrompt) -> WorldAnswer:
            return world.expert(prompt, random.Random(1))

        async def wait(self, seconds: float) -> None:
            raise AssertionError("the bandit does not wait")

    class Reward:
        async def reward(self, turns: Any, given: float) -> float:
            ((prompt, answer),) = turns
            assert answer == world.expert(prompt, random.Random(1))
            return 10 * given

    world = load_world("bandit")
    agent: Any = SimpleNamespace(chat=lambda _: Right())
    trained = TrainedAgent(agent, world, "code:", cast("Any", Reward()))
    (task,) = world.task_ids("train", 1, 1)
    outcome = await trained(Task(task), agent)
    assert outcome.components["success"] == 1.0
    assert outcome.reward == 10 * outcome.components[WORLD_REWARD]


@pytest.mark.parametrize(("reward", "shown"), [("code:print(9)", 0.5), ("world", 9.0)])
def test_what_a_program_says_is_no_metric(reward: str, shown: float) -> None:
    its = parsed(SwarmArena().resolve({"train_steps": 1, "eval_tasks": 1, "reward": reward}))
    (task,) = load_world("bandit").task_ids("eval", 1, 1)
    components = {"success": 1.0, WORLD_REWARD: 0.5}
    episodes = [
        EndedEpisode("train", "", "train-1-0", 0, 9.0, components, 1),
        EndedEpisode("eval", HELD_OUT, task, 1, 1.0, {}, None),
    ]
    evidence = _evidence(its, 1, RunRecords({}, "", 1, "", episodes), "")
    assert evidence.metrics == {"success": 1.0, "train_success": 1.0, "train_reward": shown}


def test_answers_below_the_interpreter_are_covered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = tmp_path / "python"
    (prefix / "lib/world").mkdir(parents=True)
    (prefix / "lib/single.py").touch()
    monkeypatch.setattr(sys, "base_prefix", str(prefix))
    answers = [prefix / "lib/world", prefix / "lib/single.py", tmp_path / "elsewhere"]
    mounts = boxed._interpreter(tmp_path, answers)
    assert list(mounts) == [str(prefix), str(answers[0]), str(answers[1])]
    assert not any(path.name == "world" for path in mounts.values())
    assert mounts[str(answers[0])].is_dir()
    assert mounts[str(answers[1])].read_bytes() == b""


def test_the_files_of_a_world_are_its_package() -> None:
    import ajet_worlds

    files = list(boxed._files_of(load_world("bandit")))
    assert Path(ajet_worlds.__file__).parent.resolve() in files


# --- With real sandboxes --------------------------------------------------------------------------


@pytest.fixture
def neighbour() -> Iterator[int]:
    """A port of the host's loopback that somebody serves."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        yield listening.getsockname()[1]


def forbidden(tmp_path: Path, port: int) -> str:
    """What `HOSTILE` is to try."""
    import ajet_worlds.bandit

    return "FORBIDDEN = " + repr(
        {
            "readable": [
                *map(str, (ajet_worlds.bandit.__file__, SHADOWED, tmp_path / "secret")),
                "/root/.ssh/id_rsa",
                "/proc/1/environ",
            ],
            "port": port,
            "written": str(tmp_path / "written"),
            "daemon": f"left-behind-{tmp_path.name}",
        }
    )


@needs_bubblewrap
@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(600)
async def test_code_reaches_its_model_and_nothing_else(
    tmp_path: Path, scripted: None, neighbour: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ajet_backend_torch")
    (tmp_path / "secret").write_text("of the study")
    (tmp_path / LEDGER).touch()
    store = tmp_path / "trials/t/store"
    store.mkdir(parents=True)
    its = parsed(
        SwarmArena().resolve({**SCRIPTED, "engine.settings": replies(right=True)}),
    )
    world = load_world("bandit")
    create_tiny_model(store / "model", worlds=[world], seed=1, warmup_steps=0)
    # As if the world were installed beside the interpreter's own library.
    answers = [*boxed._files_of(world), SHADOWED.resolve()]
    monkeypatch.setattr(boxed, "_files_of", lambda _: answers)
    (task,) = world.task_ids("train", 1, 1)
    prompt = WorldPrompt([{"role": "user", "content": "lamp 0"}], max_tokens=4)
    code = "code:" + forbidden(tmp_path, neighbour) + "\n" + HOSTILE
    with TrialServer(store) as server:
        assert server.start(its.run_config(store / "model", 1)) == ""
        async with AsyncSwarmClient(server.url, server.client_token) as client:
            episode = await client.begin_episode(task)
            async with boxed.open_agent(code, world, client, store) as agent:
                answer = await agent.answer(prompt, episode)
                assert json.loads(answer.text) == {"worked": []}
            status = await client.episode_status(episode)
            assert (status.state, status.calls) == ("open", 1)
            async with boxed.open_agent("code:print(2)", world, client, store) as agent:
                second = await client.begin_episode(task)
                with pytest.raises(boxed.ArmFailedError, match="made no model call"):
                    await agent.answer(prompt, second)
                assert "made no model call" in agent.failed
            broken = "code:" + HONEST_ARM + "\nraise SystemExit(1)"
            async with boxed.open_agent(broken, world, client, store) as agent:
                assert await agent.answer(prompt, second) == WorldAnswer("")
    assert not (tmp_path / "written").exists()
    assert not any(
        f"left-behind-{tmp_path.name}" in " ".join(one.info["cmdline"] or ())
        for one in psutil.process_iter(["cmdline"])
    )


@needs_bubblewrap
@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(1200)
def test_a_study_of_an_honest_and_a_hostile_arm_ends_in_a_report(
    tmp_path: Path, scripted: None, neighbour: int
) -> None:
    pytest.importorskip("ajet_backend_torch")
    hostile = forbidden(tmp_path, neighbour) + "\n" + HOSTILE
    source = arms(tmp_path / "own", second=hostile) / "study.json"
    base: dict[str, Scalar] = {"train_steps": 1, "eval_tasks": 2, "batch.tasks": 1}
    its = code_study("arms/a.py", "arms/b.py", **base)
    source.write_text(its.model_dump_json(by_alias=True))
    where = tmp_path / "study"
    state = run_study(source, where)
    assert state.reported is not None
    outcomes = {one.arm: one.outcome for one in state.trials.values()}
    success = {arm: one and one.metrics.get("success") for arm, one in outcomes.items()}
    assert success == {'program="code:arms/a.py"': 1.0, 'program="code:arms/b.py"': 0.0}
    assert verify_study(where).problems == []
    report = (where / "report/report.md").read_text()
    assert "## Code of arms" in report
    assert hashlib.sha256(hostile.encode()).hexdigest() in report
    for path in where.glob(f"trials/*/{STORE}/server/samples.sqlite3"):
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as store:
            assert store.execute("SELECT count(*) FROM episodes").fetchone() == (4,)
    # A replication has the registered code, whatever became of its files.
    shutil.rmtree(source.parent)
    with pytest.raises(StoreError, match="cannot run"):
        replicate_study(where, tmp_path / "again", runner=Full)
    assert first_row(tmp_path / "again").files == first_row(where).files


@needs_bubblewrap
@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(600)
def test_code_without_a_model_call_is_an_outcome(tmp_path: Path, scripted: None) -> None:
    pytest.importorskip("ajet_backend_torch")
    its = trial(agent="code:print(2)")
    SwarmArena().run(its, tmp_path)
    reason = (tmp_path / CODE_FAILED).read_text()
    assert "made no model call that was answered" in reason
    evidence = read_evidence(SwarmArena(), its, tmp_path)
    assert (evidence.metrics, evidence.failed) == ({}, reason)
    # Nothing of it starts again.
    (tmp_path / LOG).unlink()
    SwarmArena().run(its, tmp_path)
    assert not (tmp_path / LOG).exists()


GENEROUS = """\
import json, os, socket, sys
asked = json.load(sys.stdin)
assert sorted(asked) == ["reward", "turns"]
assert not any("OPENAI" in name or "AJET_SERVER" in name for name in os.environ)
try:
    socket.create_connection(("192.0.2.1", 80), timeout=1)
except OSError:
    print(2 * asked["reward"] + 1 + len(asked["turns"]))
"""


@needs_bubblewrap
@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(600)
def test_a_trial_trains_on_the_reward_of_a_program(tmp_path: Path, scripted: None) -> None:
    pytest.importorskip("ajet_backend_torch")
    its = trial(reward=f"code:{GENEROUS}", train_steps=1, eval_tasks=2)
    SwarmArena().run(its, tmp_path)
    trained = [one for one in read_run(tmp_path).episodes if one.kind == "train"]
    assert len(trained) >= 8
    assert all(one.reward == 2 * one.components[WORLD_REWARD] + 2 for one in trained)
    evidence = read_evidence(SwarmArena(), its, tmp_path)
    assert evidence.failed == ""
    assert evidence.metrics["success"] == 1.0
    assert evidence.metrics["train_reward"] <= 1.0


@needs_bubblewrap
@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("'superior'", "the program printed something else than one finite number"),
        ("2e6", "the program printed a reward that is too large"),
    ],
)
def test_a_program_that_prints_no_reward_is_an_outcome(
    tmp_path: Path, scripted: None, printed: str, said: str
) -> None:
    pytest.importorskip("ajet_backend_torch")
    its = trial(reward=f"code:print({printed})")
    SwarmArena().run(its, tmp_path)
    evidence = read_evidence(SwarmArena(), its, tmp_path)
    assert (evidence.metrics, evidence.failed) == ({}, f"the reward: {said}")


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(600)
async def test_the_server_of_a_trial_has_the_largest_reward_that_is_accepted(
    tmp_path: Path, scripted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ajet_backend_torch")
    monkeypatch.setattr(server_of_trial, "MAX_REWARD", 12.5)
    its = parsed(SwarmArena().resolve({**SCRIPTED, "engine.settings": RIGHT}))
    world = load_world("bandit")
    create_tiny_model(tmp_path / "model", worlds=[world], seed=1, warmup_steps=0)
    (task,) = world.task_ids("train", 1, 1)
    with TrialServer(tmp_path) as server:
        assert server.start(its.run_config(tmp_path / "model", 1)) == ""
        async with AsyncSwarmClient(server.url, server.client_token) as client:
            episode = await client.begin_episode(task)
            with pytest.raises(RequestError, match=r"must be from -12\.5 to 12\.5 "):
                await client.end_episode(episode, 12.6)


FILLING = """\
import os, time
for number in range(256):
    with open(f"large-{number}", "wb") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, 2**18)
        except OSError:
            break
time.sleep(600)
"""


@pytest.mark.nightly
@needs_bubblewrap
@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(600)
def test_no_arm_loses_a_trial_by_a_full_disk(
    tmp_path: Path, scripted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ajet_backend_torch")
    monkeypatch.setattr(boxed, "_DISK_BYTES", 2**24)
    monkeypatch.setattr(boxed, "_SECONDS", 10.0)
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    with small_disk(tmp_path / "disk", 2**26) as disk:
        monkeypatch.setattr(tempfile, "tempdir", str(disk))
        # It has what it needs, and takes all that there is before it is measured.
        its = trial(reward=f"code:{FILLING}", train_steps=1, eval_tasks=2)
        SwarmArena().run(its, tmp_path / "first")
        evidence = read_evidence(SwarmArena(), its, tmp_path / "first")
        assert evidence.failed == f"the reward: {boxed._TOO_MUCH}"
        # Another has taken it, after the trial began.
        (disk / "other").write_bytes(bytes(2**26 - 2**20))
        monkeypatch.setattr(trials, "check_room", lambda _: None)
        its = trial(reward="code:print(1)", train_steps=1, eval_tasks=2)
        with pytest.raises(OSError, match=r"disk of .* is full") as raised:
            SwarmArena().run(its, tmp_path / "second")
        assert raised.value.errno == errno.ENOSPC
        assert not (tmp_path / "second" / CODE_FAILED).exists()
        # There is room again: the same trial goes on.
        (disk / "other").unlink()
        SwarmArena().run(its, tmp_path / "second")
        assert read_evidence(SwarmArena(), its, tmp_path / "second").failed == ""


# --- Resuming, without trials -----------------------------------------------------


def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A study that is registered, and whose first trial has not started."""
    monkeypatch.setattr(SwarmArena, "check_machine", lambda *_: None)

    source = arms(tmp_path / "own") / "study.json"
    source.write_text(code_study().model_dump_json(by_alias=True))
    where = tmp_path / "study"
    with pytest.raises(StoreError, match="cannot run"):
        run_study(source, where, runner=Full)
    return source, where


def test_changed_bytes_are_refused_by_name_when_a_study_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, where = begun(tmp_path, monkeypatch)
    code = source.parent / "arms/b.py"
    for change in (lambda: code.write_text(OTHER + " "), code.unlink):
        change()
        with pytest.raises(ConfigError, match=r"not the one that is registered: arms/b\.py\. Res"):
            run_study(source, where)
    assert first_row(where).files == {"arms/a.py": HONEST_ARM, "arms/b.py": OTHER}
    # The directory needs no file of code: the ledger has it.
    assert verify_study(where).problems == []
