"""Trials on swarm servers: settings, evidence, and kills in the middle of their runs."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentjet.client import Task
from ajet_core.errors import BatchStarvedError, ConfigError
from ajet_core.interfaces import (
    Chat,
    ComponentSettings,
    World,
    WorldAnswer,
    WorldOutcome,
    WorldPrompt,
)
from ajet_core.interfaces.world import Split
from ajet_research.arenas import TrialBlueprint, load_arena, read_evidence
from ajet_research.leader import MachineClock, run_study
from ajet_research.registration import register
from ajet_research.runners import LocalRunner, Settled
from ajet_research.study import Scalar
from ajet_research.suites.swarm import TOPICS, run_topic, topic_study
from ajet_research.swarm import SwarmArena, arena, settings
from ajet_research.swarm.records import SERVER, STORE_FILE, read_run
from ajet_research.swarm.settings import parsed, resolved
from ajet_research.swarm.trial import TrainedAgent, _train
from ajet_research.verifying import verify_study
from ajet_research.worker import LOCK, STORE
from ajet_server.store.schema import _SCHEMA
from ajet_worlds import load_world
from ajet_worlds.bandit import BEST_ARM, BanditWorld
from ajet_worlds.isolation import IsolatedWorld
from ajet_worlds.recipe import run_config
from tests.research.studies import study
from tests.support.sites import Site


def test_defaults_are_those_of_the_recipe() -> None:
    its = parsed(resolved({"world": "grid"}))
    world = load_world("grid")
    assert its.run_config(Path("m"), 3) == run_config(world, Path("m"), seed=3)
    assert (its.train_steps, its.warmup_steps) == (world.recipe.steps, world.recipe.warmup_steps)


def test_any_part_of_the_configuration_is_a_setting() -> None:
    changes: dict[str, Scalar] = {
        "algorithm.learning_rate": 1,
        "algorithm.adam_betas": "json:[0.5, 0.6]",
        "engine.settings": 'json:{"threads": 1}',
        "trainer.settings.threads": 2,
        "rollout.sampling.temperature": 0.5,
        "timelines.layout": "tree",
        "exact": True,
    }
    flat = resolved(changes)
    assert flat["algorithm.learning_rate"] == 1.0
    assert flat["rollout.sampling.top_p"] == "json:null"
    assert resolved(flat) == flat
    config = parsed(flat).run_config(Path("m"), 1)
    assert config.algorithm.adam_betas == (0.5, 0.6)
    assert (config.engine.settings, config.trainer.settings) == ({"threads": 1}, {"threads": 2})
    assert (config.rollout.sampling.temperature, config.exact) == (0.5, True)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"algorithm.rate": 1.0}, "Unknown setting 'algorithm.rate' .*known there: advantage, "),
        (
            {"rate": 1.0},
            "known there: world, train_steps, .* agent, engine, .* exact, checkpoint_every",
        ),
        ({"algorithm.learning_rate": "fast"}, "cannot have algorithm.learning_rate: .*number"),
        ({"batch.tasks": "json:["}, "has no JSON behind 'json:'"),
        ({"batch.episodes_per_task": 1}, "must be at least 2"),
        ({"steps": 3}, "'steps' follows from the trial; no study sets it. Set 'train_steps'"),
        ({"seed": 3}, "'seed' follows from the trial"),
        ({"model.path": "m"}, "'model.path' follows from the trial"),
        ({"train_steps": 0}, "'train_steps' is 0; it is at least 1"),
        ({"train_steps": 2.0}, "'train_steps' is 2.0; the arena swarm needs a whole number"),
        ({"reward": "none"}, "'reward' is one of: world, negated, constant"),
        ({"world": "flat"}, "flat"),
    ],
    ids=range(12),
)
def test_what_cannot_be_set_is_refused(changes: Mapping[str, Scalar], problem: str) -> None:
    with pytest.raises(Exception, match=problem) as caught:
        resolved(changes)
    assert type(caught.value).__name__ in ("ConfigError", "UnknownComponentError")


class LuckyWorld(BanditWorld):
    """Equal answers have other scores each time."""

    async def play(self, task_id: str, chat: Chat) -> WorldOutcome:
        outcome = await super().play(task_id, chat)
        luck = random.random()
        return WorldOutcome(outcome.reward, luck, outcome.components)


class SmallWorld(BanditWorld):
    """All splits have the same tasks."""

    def task_ids(self, split: Split, seed: int, count: int, start: int = 0) -> list[str]:
        return [f"task-{number}" for number in range(start, start + count)]


def refusal_in(world: World[Any], name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Why a study in a world is refused."""
    known = {name: IsolatedWorld(world, name)}
    for module in (arena, settings):
        monkeypatch.setattr(module, "load_world", lambda chosen: known[chosen])
    with pytest.raises(ConfigError) as caught:
        register(swarm_study(world=name), Path())
    return caught.value.message


def swarm_study(**changes: Scalar) -> Any:
    base = {"world": "bandit", "train_steps": 2, "batch.tasks": 4, "eval_tasks": 6, **changes}
    return study(
        base={"arena": "swarm", "set": base},
        factors={"method": {"path": "checkpoint_every", "levels": ["a", "b"]}},
        factors__method__levels=[5, 6],
        outcome__metric="success",
        compare=[{"id": "b-vs-a", "arm": {"method": 6}, "against": {"method": 5}}],
    )


def test_a_world_whose_scores_are_luck_is_refused_with_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message = refusal_in(LuckyWorld(ComponentSettings()), "lucky", monkeypatch)
    assert "of 32 games that were played twice with the same answers, 32 were scored" in message
    assert "Let the world derive all its randomness from the task's id." in message


def test_a_world_without_source_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_module: object) -> str:
        raise OSError

    monkeypatch.setattr("inspect.getsource", missing)
    message = refusal_in(BanditWorld(ComponentSettings()), "sealed", monkeypatch)
    assert "ajet_worlds.bandit" in message
    assert "cannot be read. Install it as source files." in message


def test_tasks_in_both_splits_are_refused_with_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message = refusal_in(SmallWorld(ComponentSettings()), "small", monkeypatch)
    assert "trains on 6 of the 6 tasks that it is evaluated on with seed 1: task-0" in message


def test_the_evaluator_has_the_code_that_a_world_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = load_world("grid")
    assert isinstance(grid, IsolatedWorld)
    modules = arena._modules(grid.world_class)
    assert {"ajet_worlds.grid", "ajet_worlds.gridwalk", "ajet_worlds.turns"} <= set(modules)
    prints = {name: SwarmArena().evaluator({"world": name}) for name in ("grid", "slow-grid")}
    assert len(set(prints.values())) == 2


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"engine.name": "warp"}, "no installed plugin provides engine 'warp'"),
        ({"trainer.settings.speed": 3}, "trainer.settings.speed: unknown key"),
    ],
    ids=["engine", "settings"],
)
def test_what_cannot_run_on_this_machine_is_refused_before_it_starts(
    tmp_path: Path, changes: dict[str, Scalar], problem: str
) -> None:
    pytest.importorskip("ajet_backend_torch")
    source = tmp_path / "study.json"
    source.write_text(swarm_study(**changes).model_dump_json(by_alias=True))
    with pytest.raises(ConfigError, match=f"The arm method=. cannot run here: .*{problem}"):
        run_study(source, tmp_path / "study")
    assert not (tmp_path / "study").exists()


def test_missing_packages_are_refused_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "torch" else name)
    with pytest.raises(
        ConfigError, match=r"not installed \(torch\): pip install 'agentjet\[demo\]"
    ):
        SwarmArena().check_machine(resolved({}))


@dataclass
class Store:
    """The store of a finished trial of four tasks in two steps and three held-out tasks."""

    directory: Path
    blueprint: TrialBlueprint

    def execute(self, statement: str, *values: object) -> None:
        with closing(sqlite3.connect(self.directory / SERVER / STORE_FILE)) as store, store:
            store.execute(statement, values)

    def episode(self, task: str, reward: float, **columns: object) -> None:
        fixed = {"key_hash": "", "group_name": "", "client_id": "client", "lease_seconds": 60.0}
        row = {
            **fixed,
            "episode_id": f"{task}-{len(columns)}-{columns.get('claim_version', 0)}-{reward}",
            "task_id": task,
            "kind": "train",
            "tag": "",
            "claim_version": 0,
            "created_at": 0.0,
            "state": "ended",
            "reward": reward,
            "components": json.dumps({"success": reward}),
            "call_rewards": "{}",
            "agent_rewards": "{}",
            "metadata": "{}",
            "reason": "",
            "claim_hash": "",
            "cause": "",
            "final": 1,
            "mixed": 0,
            "rules": "{}",
            **columns,
        }
        names = ", ".join(row)
        marks = ", ".join("?" for _ in row)
        self.execute(f"INSERT INTO episodes ({names}) VALUES ({marks})", *row.values())

    def evidence(self) -> Any:
        return read_evidence(SwarmArena(), self.blueprint, self.directory)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    flat = resolved({"train_steps": 2, "batch.tasks": 2, "eval_tasks": 3})
    its = TrialBlueprint(arena="swarm", evaluator="", settings=flat, seed=1, seconds=1.0)
    (tmp_path / SERVER).mkdir()
    store = Store(tmp_path, its)
    with closing(sqlite3.connect(tmp_path / SERVER / STORE_FILE)) as connection:
        connection.executescript(_SCHEMA)
    config = parsed(flat).run_config(Path("elsewhere"), 1).model_dump_json()
    run = "INSERT INTO run VALUES (1, 'r', ?, 0.0, 1, '', NULL, 0)"
    store.execute(run, config)
    for step, batch, refused in ((1, "b1", ""), (1, "b0", "nan"), (2, "b2", "")):
        store.execute(
            "INSERT INTO batches (batch_id, step, created_at, credit, refused) "
            "VALUES (?, ?, 0.0, '{}', ?)",
            *(batch, step, refused),
        )
        if not refused:
            store.execute("INSERT INTO steps VALUES (?, ?, '{}', 0.0, '')", step, batch)
    for task, reward, batch in (
        ("train-1-0", 0.0, "b1"),
        ("train-1-1", 1.0, "b1"),
        ("train-1-9", 9.0, "b0"),
        ("train-1-2", 1.0, "b2"),
        ("train-1-3", 0.5, "b2"),
    ):
        store.episode(task, reward, batch_id=batch)
    for number, reward in enumerate((1.0, 0.0, 1.0)):
        store.episode(
            f"eval-1-{number}", reward, kind="eval", tag="held-out", claim_version=2, mixed=0
        )
    return store


def test_metrics_are_those_of_the_records(store: Store) -> None:
    # Of an earlier version, of another task set, and a second episode of a task: none counts.
    store.episode("eval-1-0", 0.25, kind="eval", tag="held-out", claim_version=1)
    store.episode("eval-1-1", 0.5, kind="eval", tag="other", claim_version=2)
    store.episode("eval-1-2", 0.75, kind="eval", tag="held-out", claim_version=2)
    assert dict(store.evidence().metrics) == {
        "success": pytest.approx(2 / 3),
        "train_success": pytest.approx(2.5 / 4),
        "train_reward": 0.75,
    }


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("DELETE FROM episodes WHERE task_id = 'eval-1-2'", "1 of 3 held-out tasks have no score"),
        ("UPDATE episodes SET state = 'aborted' WHERE task_id = 'eval-1-0'", "1 of 3 held-out"),
        ("UPDATE episodes SET reward = 9e999 WHERE task_id = 'eval-1-0'", "is not finite"),
        ("UPDATE episodes SET components = '{}'", "cannot be read: KeyError: 'success'"),
        ("UPDATE run SET config_json = replace(config_json, 'clip_low\":0.2', 'clip_low\":0.1')",
         "another algorithm than its trial"),
        ("DELETE FROM run", "has 0 runs"),
        ("DROP TABLE episodes", "cannot be read: no such table"),
    ],
    ids=range(7),
)  # fmt: skip
def test_records_that_do_not_fit_are_no_evidence(
    store: Store, statement: str, problem: str
) -> None:
    store.execute(statement)
    with pytest.raises(ConfigError, match=problem):
        store.evidence()


def test_a_store_that_its_server_has_not_closed_is_no_evidence(store: Store) -> None:
    log = store.directory / SERVER / f"{STORE_FILE}-wal"
    log.write_bytes(b"1")
    with pytest.raises(ConfigError, match="has not closed"):
        store.evidence()
    log.write_bytes(b"")
    assert store.evidence().metrics


def test_a_run_that_paused_is_a_failure_with_its_cause(store: Store) -> None:
    store.execute("UPDATE run SET paused = 'zero_signal: no advantage in 5 batches'")
    # All was measured before: then the pause came too late to matter.
    assert not store.evidence().failed
    store.execute("DELETE FROM episodes WHERE kind = 'eval'")
    assert store.evidence().failed == "the run paused: zero_signal: no advantage in 5 batches"


def test_a_run_that_refused_its_batches_is_a_failure_with_its_cause(store: Store) -> None:
    store.execute("INSERT INTO batches VALUES (8, 'b8', 3, 0.0, '{}', 'the loss is nan')")
    store.execute("INSERT INTO batches VALUES (9, 'b9', 3, 0.0, '{}', 'the loss is still nan')")
    # All was measured with the step before.
    assert not store.evidence().failed
    store.execute("DELETE FROM episodes WHERE kind = 'eval'")
    assert store.evidence().failed == "the run refused its batches: the loss is still nan"


@dataclass
class StarvedClient:
    """A client of a run that trains a batch now and then.

    :param steps: after so many further tasks, a step ends.
    :ivar tasks: that were rolled out.
    """

    steps: tuple[int, ...] = ()
    tasks: list[str] = field(default_factory=list)

    async def run_episodes_until_all_complete(self, tasks: list[str], *_: Any, **__: Any) -> Any:
        self.tasks += tasks
        return SimpleNamespace(failures=())

    async def status(self) -> Any:
        return SimpleNamespace(step=sum(len(self.tasks) - 8 >= at for at in self.steps))

    async def wait_for_step(self, step: int) -> None:
        if (await self.status()).step < step:
            raise BatchStarvedError("no client")


@pytest.mark.parametrize(
    ("steps", "trained", "tasks"),
    [((), False, 8 + 40), ((39,), False, 8 + 39 + 40), ((0, 39), True, 8 + 39)],
)
async def test_a_trial_whose_run_trains_nothing_more_gives_up(
    steps: tuple[int, ...], trained: bool, tasks: int
) -> None:
    its = parsed(resolved({"train_steps": 2, "batch.tasks": 4}))
    client: Any = StarvedClient(steps)
    agent: Any = None
    world = BanditWorld(ComponentSettings())
    assert await _train(its, 1, world, client, agent) is trained
    assert len(set(client.tasks)) == len(client.tasks) == tasks


def test_reading_changes_no_byte(store: Store) -> None:
    before = {path: path.read_bytes() for path in store.directory.rglob("*") if path.is_file()}
    store.evidence()
    after = {path: path.read_bytes() for path in store.directory.rglob("*") if path.is_file()}
    assert after == before


class Expert(Chat):
    """A model that knows the best arm."""

    async def ask(self, prompt: WorldPrompt) -> WorldAnswer:
        return BanditWorld(ComponentSettings()).expert(prompt, random.Random(1))

    async def wait(self, seconds: float) -> None:
        raise AssertionError("the bandit does not wait")


@pytest.mark.parametrize(
    ("reward", "paid", "unpaid"),
    [("world", 1.0, 0.0), ("negated", -0.5, 0.5), ("constant", -0.5, -0.5)],
)
async def test_an_arm_trains_on_its_reward_and_success_stays_as_it_is(
    reward: str, paid: float, unpaid: float
) -> None:
    world = BanditWorld(ComponentSettings())
    agent: Any = SimpleNamespace(chat=lambda episode: Expert())
    trained = TrainedAgent(agent, world, reward)
    outcomes = [await trained(Task(task), agent) for task in world.task_ids("train", 1, 64)]
    assert {one.reward for one in outcomes} == {paid, unpaid}
    assert sum(one.reward == paid for one in outcomes) > 32
    assert {one.components["success"] for one in outcomes} == {1.0}


# --- Real servers, with a scripted engine ---------------------------------------------------------


def replies(right: bool) -> str:
    """Settings of an engine that pulls the best arm of each lamp, or never does."""
    answers = [
        {"prompt": f"lamp {lamp}", "says": [f"{best if right else (best + 1) % 4}<|im_end|>"]}
        for lamp, best in enumerate(BEST_ARM)
    ]
    return f"json:{json.dumps({'replies': answers})}"


SCRIPTED: dict[str, Scalar] = {
    "world": "bandit",
    "train_steps": 4,
    "eval_tasks": 16,
    "warmup_steps": 0,
    "batch.tasks": 4,
    "batch.episodes_per_task": 2,
    "engine.name": "scripted",
    "trainer.name": "scripted",
    "failures.pause_on": "json:[]",
    "preflight.enabled": False,
}


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that this process starts have the scripted engine and trainer."""
    site = Site(tmp_path / "site")
    site.path.mkdir()
    site.install("scripted", "from ajet_testing.hooks import *")
    monkeypatch.setenv("PYTHONPATH", str(site.path))
    monkeypatch.syspath_prepend(site.path)


def trial(**changes: Scalar) -> TrialBlueprint:
    its = SwarmArena()
    flat = its.resolve({**SCRIPTED, "engine.settings": replies(right=True), **changes})
    return TrialBlueprint(
        arena="swarm", evaluator=its.evaluator(flat), settings=flat, seed=1, seconds=600.0
    )


def settled(runner: LocalRunner, its: TrialBlueprint, attempt: int) -> Settled:
    clock = MachineClock()
    while (result := runner.poll(its, attempt)) is None:
        clock.pause(0.05)
    return result


def run_id(directory: Path) -> str:
    with closing(sqlite3.connect(directory / STORE / SERVER / STORE_FILE)) as store:
        return str(store.execute("SELECT run_id FROM run").fetchone()[0])


def wait_for_step(runner: LocalRunner, its: TrialBlueprint, attempt: int, step: int) -> None:
    """Start an attempt, and wait until its run has ended a step."""
    directory = runner._directory / its.id
    clock = MachineClock()
    path = directory / STORE / SERVER / STORE_FILE
    while (early := runner.poll(its, attempt)) is None:
        clock.pause(0.02)
        if not path.exists():
            continue
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as store:
            try:
                (ended,) = store.execute("SELECT coalesce(max(step), 0) FROM steps").fetchone()
            except sqlite3.OperationalError:
                # It is being created.
                continue
        if ended >= step:
            return
    raise AssertionError(early.cause)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(1200)
def test_a_trial_continues_inside_its_run_when_its_server_or_its_worker_is_killed(
    tmp_path: Path, scripted: None
) -> None:
    its = trial(train_steps=40)
    runner = LocalRunner(tmp_path / "trials", SwarmArena())
    where = tmp_path / "trials" / its.id
    wait_for_step(runner, its, 1, 3)
    first = run_id(where)
    note = json.loads((where / STORE / SERVER / "server.json").read_text())
    os.kill(note["pid"], signal.SIGKILL)
    lost = settled(runner, its, 1)
    assert "the server of the trial ended with SIGKILL" in lost.cause
    wait_for_step(runner, its, 2, 10)
    os.kill(int((where / LOCK).read_text()), signal.SIGKILL)
    assert settled(runner, its, 2).cause == "the worker ended with -9"
    done = settled(runner, its, 3)
    assert done.evidence is not None, done.cause
    assert done.evidence.metrics["success"] == 1.0
    assert run_id(where) == first
    records = read_run(where / STORE)
    trained = [one.task for one in records.episodes if one.step is not None]
    # No task was rolled out twice; a few may have lost their place in a batch to another one.
    assert len(trained) == 40 * 4 * 2
    assert max(trained.count(task) for task in set(trained)) == 2


@pytest.mark.nightly
@pytest.mark.processes
@pytest.mark.timeout(1200)
def test_a_run_that_refuses_its_batches_and_does_not_pause_is_a_row_and_a_line(
    tmp_path: Path, scripted: None
) -> None:
    # The second arm's batches are refused from its second step on.
    levels = [f"json:{json.dumps({'refuses_at': step, 'once': False})}" for step in (1000, 2)]
    base = {
        **SCRIPTED,
        "engine.settings": replies(right=True),
        "batch.tasks": 1,
        "failures.max_refused": 1000,
    }
    its = study(
        base={"arena": "swarm", "set": base},
        factors={"trainer": {"path": "trainer.settings", "levels": levels}},
        outcome={"metric": "success", "smallest": 0.2},
        inference={"looks": [{"seeds": 2, "alpha": 0.5}], "alpha": 0.5, "repeats": 0},
        compare=[
            {"id": "b-vs-a", "arm": {"trainer": levels[1]}, "against": {"trainer": levels[0]}}
        ],
        budget={"trials": 4, "trial_seconds": 1200, "compute_hours": 2},
    )
    source = tmp_path / "study.json"
    source.write_text(its.model_dump_json(by_alias=True))
    state = run_study(source, tmp_path / "study", parallel=2)
    failed = {
        id_: one.outcome.failed
        for id_, one in state.trials.items()
        if one.outcome and one.outcome.failed
    }
    assert len(failed) == 2
    report = (tmp_path / "study/report/report.md").read_text()
    for id_, cause in failed.items():
        assert cause.startswith("the run refused its batches: scripted refusal")
        assert state.trials[id_].attempts == 1
        assert f"(#trial-{id_}) (" in report
    assert report.count("the run refused its batches: ") == 2
    assert verify_study(tmp_path / "study").problems == []


@pytest.mark.nightly
@pytest.mark.processes
@pytest.mark.timeout(1200)
def test_a_study_of_real_servers_verifies_from_their_stores(tmp_path: Path, scripted: None) -> None:
    levels = [replies(right=True), replies(right=False)]
    its = study(
        base={"arena": "swarm", "set": SCRIPTED},
        factors={"method": {"path": "engine.settings", "levels": levels}},
        outcome={"metric": "success", "smallest": 0.2},
        inference={"looks": [{"seeds": 2, "alpha": 0.5}], "alpha": 0.5, "repeats": 0},
        compare=[{"id": "b-vs-a", "arm": {"method": levels[0]}, "against": {"method": levels[1]}}],
        budget={"trials": 4, "trial_seconds": 600, "compute_hours": 1},
    )
    source = tmp_path / "study.json"
    source.write_text(its.model_dump_json(by_alias=True))
    state = run_study(source, tmp_path / "study", parallel=2)
    assert state.verdicts["b-vs-a"].verdict == "better"
    assert verify_study(tmp_path / "study").problems == []
    # Whoever looks at a store leaves it as it was, and whoever raises a score in it is caught.
    for path in (tmp_path / "study" / "trials").glob(f"*/{STORE}/{SERVER}/{STORE_FILE}"):
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as store:
            assert store.execute("SELECT count(*) FROM episodes").fetchone()[0]
    assert verify_study(tmp_path / "study").problems == []
    path = next((tmp_path / "study" / "trials").glob(f"*/{STORE}/{SERVER}/{STORE_FILE}"))
    shutil.copy(path, tmp_path / "copy")
    with closing(sqlite3.connect(path)) as store, store:
        store.execute("UPDATE episodes SET reward = 0.5 WHERE kind = 'eval'")
    assert any("raw store has changed" in one for one in verify_study(tmp_path / "study").problems)


# --- Real learning --------------------------------------------------------------------------------


def test_topics_can_be_registered_and_have_one_right_answer() -> None:
    assert len(TOPICS) == 7
    for name in TOPICS:
        its = topic_study(name, seeds=6)
        assert len(register(its, Path()).blueprints) == 12
        assert its.compare[0].expect in ("better", "worse", "equivalent")
    assert load_arena("swarm").metrics.keys() == {"success", "train_success", "train_reward"}


# The two with the largest effects, in a third of the steps.
@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["constant-reward", "negated-reward"])
def test_two_seeds_answer_a_planted_topic_with_a_large_effect(name: str, tmp_path: Path) -> None:
    result = run_topic(name, tmp_path, seeds=2, train_steps=8)
    assert (result["right"], result["false"], result["problems"]) == (True, False, []), result


@pytest.mark.nightly
@pytest.mark.processes
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", TOPICS)
def test_a_planted_topic_is_answered_rightly(name: str, tmp_path: Path) -> None:
    result = run_topic(name, tmp_path, seeds=6)
    assert (result["right"], result["false"], result["problems"]) == (True, False, []), result
