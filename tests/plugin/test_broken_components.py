"""Whatever a component does wrong, wherever: its plugin and its exception are named."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import random
import re
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agentjet import load_judge, read_tasks
from agentjet.agents.isolation import IsolatedAdapter
from ajet_cli.main import cli
from ajet_core.errors import AjetError, EngineError, WorkerBootError, WorkerError
from ajet_core.interfaces import (
    Chat,
    LoggedRun,
    ModelEndpoint,
    RunRecord,
    SampleStore,
    Task,
    TaskSource,
    WeightUpdate,
    WorkerContext,
    World,
    WorldAnswer,
    WorldPrompt,
)
from ajet_core.plugin import KindName, PluginManager
from ajet_core.plugin.discovery import installed_entry_points
from ajet_core.plugin.kinds import KINDS
from ajet_core.plugin.loading import OBSERVERS
from ajet_core.protocol import (
    AlgorithmConfig,
    ComponentChoice,
    Evaluation,
    Finding,
    ModelConfig,
    RunConfig,
    ServerState,
)
from ajet_installation.settings import Settings, StoreSettings
from ajet_server.observe.checked_components import CheckedEstimator
from ajet_server.observe.logger_thread import LoggerThread
from ajet_server.observe.run_merger import make_merger
from ajet_server.run.run_setup import component_plan
from ajet_server.store.chosen_store import run_store
from ajet_server.workers import methods
from ajet_server.workers.codec import BootPlan
from ajet_server.workers.connection import WorkerConnection
from ajet_server.workers.host import WorkerHost
from ajet_server.workers.remote import RemoteEngine, RemoteTrainer
from ajet_sources import load_source
from ajet_testing.scripted_engine import ScriptedEngine
from ajet_testing.suites.advantage_suite import batch_of
from ajet_worlds.registry import load_world
from ajet_worlds.rehearsal import rehearse
from tests.support.sites import Site
from tests.worker.test_process import batch, request

from . import broken_parts
from .broken_parts import CONSTRUCTOR

HOOKS = """
from ajet_core.plugin import (
    AdvantageSpec, AgentSpec, JudgeSpec, MergerSpec, ReaderSpec, SourceSpec, WorldSpec
)
PARTS = "tests.plugin.broken_parts:"
ENGINE = "ajet_testing.scripted_engine:ScriptedEngineSettings"
TRAINER = "ajet_testing.scripted_trainer:ScriptedTrainerSettings"

@hookimpl
def ajet_register_engines():
    return [EngineSpec(name="bad", target=PARTS + "BrokenEngine", settings=ENGINE,
                       capabilities=CHANNELS)]

@hookimpl
def ajet_register_trainers():
    can = TrainerCapabilities(weight_channels=("in_process",), algorithm_fields=frozenset())
    return [TrainerSpec(name="bad", target=PARTS + "BrokenTrainer", settings=TRAINER,
                        capabilities=can)]

@hookimpl
def ajet_register_stores():
    return [StoreSpec(name="bad", target=PARTS + "BrokenStore",
                      settings="ajet_server.embedded.settings:SqliteStoreSettings")]

@hookimpl
def ajet_register_loggers():
    return [LoggerSpec(name="bad", target=PARTS + "BrokenLogger",
                       settings="ajet_server.embedded.settings:JsonlLoggerSettings")]

@hookimpl
def ajet_register_mergers():
    return [MergerSpec(name="bad", target=PARTS + "BrokenMerger",
                       settings="ajet_server.embedded.settings:TrieMergerSettings")]

@hookimpl
def ajet_register_advantages():
    return [AdvantageSpec(name="bad", target=PARTS + "BrokenEstimator")]

@hookimpl
def ajet_register_readers():
    return [ReaderSpec(name="bad", target=PARTS + "BrokenReader",
                       settings="agentjet.agents.readers:JsonlReaderSettings")]

@hookimpl
def ajet_register_judges():
    return [JudgeSpec(name="bad", target=PARTS + "BrokenJudge",
                      settings="agentjet.judges.answers:ExactJudgeSettings")]

@hookimpl
def ajet_register_sources():
    return [SourceSpec(name="bad", target=PARTS + "BrokenSource")]

@hookimpl
def ajet_register_worlds():
    return [WorldSpec(name="bad", target=PARTS + "BrokenWorld", ability="none")]

@hookimpl
def ajet_register_agents():
    return [AgentSpec(name="bad", target=PARTS + "BrokenAdapter", framework="json")]

@hookimpl
def ajet_register_commands():
    return [CommandSpec(name="bad", target=PARTS + "command")]

@hookimpl
def ajet_state_changed(state):
    1 / 0

@hookimpl
def ajet_episode_finished(episode):
    1 / 0

@hookimpl
def ajet_step_finished(summary):
    1 / 0
"""
OWNER = r"plugin 'broken' \(distribution ajet-broken 1\.2\)"
ELSEWHERE: dict[str, set[str]] = {
    # The launcher of `ajet exec` calls them, and aborts the episode.
    "sandbox": {"problem", "remove_leftovers", "run"},
    # A property without code that can fail at run time.
    "merger": {"promises"},
}
"""Methods that are not called by agentjet itself."""


@pytest.fixture
def plugins(site: Site, monkeypatch: pytest.MonkeyPatch) -> PluginManager:
    """The installed plugins and the broken one."""
    site.install("ajet-broken", HOOKS, name="broken")
    monkeypatch.setattr(broken_parts, "FAILING", [])
    monkeypatch.setattr(broken_parts, "CLOSED", [])
    return PluginManager(entry_points=installed_entry_points())


def break_(method: str) -> None:
    broken_parts.FAILING.append(method)


def check_named(text: str, kind: str, exception: str = "ZeroDivisionError: boom") -> None:
    """Check that the first line names the component, its plugin and the exception."""
    line = text.partition("\n")[0]
    assert re.search(rf"{kind} 'bad' of {OWNER}.*{exception}", line), text


def public(interface: type) -> set[str]:
    """The methods of an interface, with those of its bases."""
    return {
        name
        for base in interface.__mro__
        if base.__module__.startswith("ajet_core.interfaces")
        for name, value in vars(base).items()
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
    }


class Hosted:
    """A worker's host in this process, with the broken engine and trainer."""

    def __init__(self, plugins: PluginManager, run_dir: Path) -> None:
        choice, settings = ComponentChoice(name="bad"), Settings()
        self.run_dir = run_dir
        self.plan = BootPlan(
            run_dir=str(run_dir),
            seed=0,
            model=ModelConfig(path="none"),
            algorithm=AlgorithmConfig(),
            engine=component_plan(plugins, plugins.engine("bad"), choice, settings),
            trainer=component_plan(plugins, plugins.trainer("bad"), choice, settings),
            checkpoint=None,
        )
        self.connection: WorkerConnection
        self._host = WorkerHost()

    async def __aenter__(self) -> Hosted:
        ours, theirs = socket.socketpair()
        self._serving = asyncio.create_task(self._host.serve(theirs))
        self.connection = await WorkerConnection.open(ours)
        self._reading = asyncio.create_task(self.connection.read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.connection.close()
        await self._serving
        await self._host.close()
        self._reading.cancel()

    async def boot(self, **changes: Any) -> None:
        await self.connection.call(methods.BOOT, BootPlan(**{**vars_of(self.plan), **changes}))

    @property
    def engine(self) -> RemoteEngine:
        return RemoteEngine(self.connection, "worker")

    @property
    def trainer(self) -> RemoteTrainer:
        return RemoteTrainer(self.connection)


def vars_of(plan: BootPlan) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in plan.__slots__}


async def generated(engine: RemoteEngine) -> None:
    async for _ in engine.generate(request()):
        pass


UPDATE = WeightUpdate("in_process", 1, "")
ENGINE: dict[str, Callable[[RemoteEngine], Awaitable[object]]] = {
    "generate": generated,
    "update_weights": lambda engine: engine.update_weights(UPDATE),
    "seal": lambda engine: engine.seal(),
    "pause": lambda engine: engine.pause(),
    "resume": lambda engine: engine.resume(),
    "sleep": lambda engine: engine.sleep(),
    "wake": lambda engine: engine.wake(),
    "use_servers": lambda engine: engine.use_servers([]),
    "stats": lambda engine: engine.stats(),
    "metrics": lambda engine: engine.metrics(),
}
TRAINER: dict[str, Callable[[RemoteTrainer, Path], Awaitable[object]]] = {
    "step": lambda trainer, _: trainer.step(batch()),
    "rehearse": lambda trainer, _: trainer.rehearse(batch()),
    "publish": lambda trainer, _: trainer.publish("in_process", 1),
    "save": lambda trainer, path: trainer.save(path),
    "export": lambda trainer, path: trainer.export(path),
}
AT_BOOT = [CONSTRUCTOR, "start"]


@pytest.mark.parametrize("method", ENGINE)
async def test_a_method_of_an_engine(method: str, plugins: PluginManager, tmp_path: Path) -> None:
    async with Hosted(plugins, tmp_path) as hosted:
        await hosted.boot()
        break_(method)
        # A failure of an update is not taken for one of the batch.
        kind = WorkerError if method == "generate" else EngineError
        with pytest.raises(kind) as caught:
            await ENGINE[method](hosted.engine)
        check_named(caught.value.message, "engine")
        assert f"failed in {method}" in caught.value.message


@pytest.mark.parametrize("method", TRAINER)
async def test_a_method_of_a_trainer(method: str, plugins: PluginManager, tmp_path: Path) -> None:
    async with Hosted(plugins, tmp_path) as hosted:
        await hosted.boot()
        break_(method)
        with pytest.raises(WorkerError) as caught:
            await TRAINER[method](hosted.trainer, tmp_path / "there")
        check_named(caught.value.message, "trainer")
        assert f"failed in {method}" in caught.value.message


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        *((kind, method) for kind in ("engine", "trainer") for method in AT_BOOT),
        ("trainer", "load"),
    ],
)
async def test_the_boot_of_an_engine_or_a_trainer(
    kind: str, method: str, plugins: PluginManager, tmp_path: Path
) -> None:
    async with Hosted(plugins, tmp_path) as hosted:
        other = {"engine": "trainer", "trainer": "engine"}[kind]
        break_(method)
        changes: dict[str, Any] = {other: None}
        if method == "load":
            changes["checkpoint"] = str(tmp_path)
        with pytest.raises(WorkerBootError) as caught:
            await hosted.boot(**changes)
        check_named(caught.value.message, kind)


@pytest.mark.parametrize("result", [None, 7, "up"])
async def test_a_wrong_result_of_an_engine_or_a_trainer(
    result: object, plugins: PluginManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stats(_: object) -> object:
        return result

    async with Hosted(plugins, tmp_path) as hosted:
        await hosted.boot()
        monkeypatch.setattr(broken_parts.BrokenEngine, "stats", stats)
        monkeypatch.setattr(broken_parts.BrokenTrainer, "step", lambda *_: result)
        for kind, call in (
            ("engine", hosted.engine.stats()),
            ("trainer", hosted.trainer.step(batch())),
        ):
            with pytest.raises(AjetError) as caught:
                await call
            check_named(caught.value.message, kind, f"TypeError: .* a {type(result).__name__} ")


async def test_engine_and_trainer_are_closed_whatever_the_other_does(
    plugins: PluginManager, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Hosted(plugins, tmp_path) as hosted:
        await hosted.boot()
        break_("close")
    for kind in ("engine", "trainer"):
        assert any(
            re.search(rf"{kind} 'bad' of {OWNER} failed in close: ZeroDivisionError: boom", text)
            for text in caplog.messages
        ), caplog.text


async def test_a_trainer_is_closed_after_an_engine_that_cannot_be(
    plugins: PluginManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScriptedEngine, "close", broken_parts.boom)
    async with Hosted(plugins, tmp_path) as hosted:
        await hosted.boot()
    assert broken_parts.CLOSED == ["BrokenEngine", "BrokenTrainer"]


async def all_episodes(store: SampleStore) -> None:
    async for _ in store.episodes():
        pass


STORE: dict[str, Callable[[SampleStore], Awaitable[object]]] = {
    "open": lambda store: store.open(),
    "append": lambda store: store.append(RunRecord("r", "{}", 0.0)),
    "get_run": lambda store: store.get_run(),
    "get_episode": lambda store: store.get_episode("e"),
    "episodes": all_episodes,
    "calls": lambda store: store.calls(["e"]),
    "scores": lambda store: store.scores("e"),
    "batches": lambda store: store.batches(after_step=0),
    "steps": lambda store: store.steps(),
    "call_totals": lambda store: store.call_totals(),
    "close": lambda store: store.close(),
}


@pytest.mark.parametrize("method", [CONSTRUCTOR, *STORE])
async def test_a_method_of_a_store(method: str, plugins: PluginManager, tmp_path: Path) -> None:
    if method == CONSTRUCTOR:
        break_(method)
        with pytest.raises(AjetError) as caught:
            run_store(StoreSettings(name="bad"), plugins, tmp_path)
        check_named(caught.value.message, "store")
        return
    store = run_store(StoreSettings(name="bad"), plugins, tmp_path)._store
    if method != "open":
        await store.open()
    break_(method)
    with pytest.raises(AjetError) as caught:
        await STORE[method](store)
    check_named(caught.value.message, "store")
    broken_parts.FAILING.clear()
    await store.close()


LOGGER = ["start", "log", "log_evaluation", "log_finding", "log_system", "finish", "close"]


@pytest.mark.parametrize("method", [CONSTRUCTOR, *LOGGER])
def test_a_method_of_a_logger(
    method: str, plugins: PluginManager, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = plugins.logger("bad")
    settings = plugins.validate_settings(spec, {})
    make = partial(plugins.create, spec, settings, WorkerContext(run_dir=tmp_path))
    thread = LoggerThread(plugins.describe(spec), make, limit=9, clock=lambda: 0.0)
    break_(method)
    thread.open()
    if method == CONSTRUCTOR:
        with pytest.raises(AjetError) as caught:
            thread.created(10)
        check_named(caught.value.message, "logger")
        return
    thread.created(10)
    config = RunConfig.model_validate({"model": {"path": "m"}})
    thread.start(LoggedRun("r", config, 0))
    thread.record("log of step 1", lambda logger: logger.log(1, {}))
    evaluation = Evaluation(
        client_id="c",
        tag="t",
        step=1,
        tasks=0,
        episodes=0,
        open=0,
        aborted=0,
        mixed=0,
        reward_mean=None,
        pass_at={},
    )
    thread.record("the evaluation", lambda logger: logger.log_evaluation(evaluation))
    finding = Finding(code="no_signal", message="equal rewards", seconds=0.0, stuck=False)
    thread.record("the finding", lambda logger: logger.log_finding(1, finding))
    thread.record("the machine", lambda logger: logger.log_system(0.0, 1, {}))
    thread.finish("done", "")
    thread.close()
    assert thread.ended(10)
    check_named(caplog.messages[0], "logger")


def test_a_method_of_a_merger_or_an_estimator(plugins: PluginManager, tmp_path: Path) -> None:
    choice, context = ComponentChoice(name="bad"), WorkerContext(run_dir=tmp_path)
    spec, algorithm = plugins.advantage("bad"), AlgorithmConfig()
    settings = plugins.validate_settings(spec, {})
    merger = make_merger(choice, plugins, context)
    estimator = CheckedEstimator(plugins.create(spec, settings, algorithm), plugins.describe(spec))
    episodes, calls = batch_of([1.0], [2])
    for method in ("merge", "estimate", CONSTRUCTOR):
        break_(method)
    attempts: list[tuple[str, Callable[[], object]]] = [
        ("merger", lambda: merger.merge("e0", calls[0])),
        ("advantage", lambda: estimator.estimate(episodes, calls)),
        ("merger", lambda: make_merger(choice, plugins, context)),
        ("advantage", lambda: plugins.create(spec, settings, algorithm)),
    ]
    for kind, attempt in attempts:
        with pytest.raises(AjetError) as caught:
            attempt()
        check_named(caught.value.message, kind)


@pytest.mark.parametrize("method", [CONSTRUCTOR, "read", "__call__"])
def test_a_method_of_a_reader_or_a_judge(
    method: str, plugins: PluginManager, tmp_path: Path
) -> None:
    (tmp_path / "tasks").write_text('{"id": 1}')
    break_(method)
    if method != "__call__":
        with pytest.raises(AjetError) as caught:
            read_tasks("bad", tmp_path / "tasks", plugins=plugins)
        check_named(caught.value.message, "reader")
    if method != "read":
        with pytest.raises(AjetError) as caught:
            load_judge("bad", plugins=plugins)({"answer": "1"}, "1")
        check_named(caught.value.message, "judge")


REWARDS: list[tuple[object, str]] = [
    (None, "ValueError: it returned a NoneType instead of a reward"),
    ("1", "ValueError: it returned a str instead of a reward"),
    (float("nan"), "ValueError: the reward is nan"),
]


@pytest.mark.parametrize(("reward", "message"), REWARDS)
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_wrong_reward_of_a_judge(
    reward: object,
    message: str,
    is_async: bool,
    plugins: PluginManager,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def later(*_: object) -> object:
        return reward

    monkeypatch.setattr(
        broken_parts.BrokenJudge, "__call__", later if is_async else lambda *_: reward
    )
    judge = load_judge("bad", plugins=plugins)
    assert inspect.iscoroutinefunction(type(judge).__call__) == is_async

    async def judged() -> object:
        given = judge({}, "")
        return await given if is_async else given

    with pytest.raises(AjetError) as caught:
        await judged()
    check_named(caught.value.message, "judge", message)


PROMPT = WorldPrompt([{"role": "user", "content": "hello"}])


class FailingChat(Chat):
    """The chat of a model that is away."""

    async def ask(self, prompt: WorldPrompt) -> WorldAnswer:
        raise ConnectionError("the model is away")

    async def wait(self, seconds: float) -> None:
        raise ConnectionError("the model is away")


WORLD: dict[str, Callable[[World], object]] = {
    "task_ids": lambda world: world.task_ids("train", 0, 1),
    "play": lambda world: asyncio.run(world.play("task", FailingChat())),
    "expert": lambda world: world.expert(PROMPT, random.Random(0)),
    "novice": lambda world: world.novice(PROMPT, random.Random(0)),
}


@pytest.mark.parametrize("method", [CONSTRUCTOR, *WORLD])
def test_a_method_of_a_world(method: str, plugins: PluginManager) -> None:
    break_(method)
    with pytest.raises(AjetError) as caught:
        WORLD.get(method, str)(load_world("bad", plugins=plugins))
    check_named(caught.value.message, "world")
    assert method == CONSTRUCTOR or f"failed in {method}" in caught.value.message


@pytest.mark.parametrize(
    ("method", "kind"),
    [("play", "WorldOutcome"), ("expert", "WorldAnswer"), ("novice", "WorldAnswer")],
)
def test_a_wrong_result_of_a_world(
    method: str, kind: str, plugins: PluginManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def played(*_: object) -> float:
        return 1.0

    wrong = played if method == "play" else lambda *_: 1.0
    monkeypatch.setattr(broken_parts.BrokenWorld, method, wrong)
    with pytest.raises(AjetError) as caught:
        WORLD[method](load_world("bad", plugins=plugins))
    exception = f"TypeError: it returned a float instead of a {kind}"
    check_named(caught.value.message, "world", exception)


def test_an_exception_of_the_model_is_none_of_the_world(plugins: PluginManager) -> None:
    with pytest.raises(ConnectionError, match=r"^the model is away$"):
        WORLD["play"](load_world("bad", plugins=plugins))


def test_a_world_that_awaits_something_else_is_named(
    plugins: PluginManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def impatient(*_: object) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(broken_parts.BrokenWorld, "play", impatient)
    world = load_world("bad", plugins=plugins)
    with pytest.raises(RuntimeError, match=rf"world 'bad' of {OWNER}: play awaits something"):
        rehearse(world, "task", world.expert, random.Random(0))


ADAPTER: dict[str, Callable[[IsolatedAdapter], object]] = {
    "accepts": lambda adapter: adapter.accepts(json.JSONEncoder()),
    "fresh": lambda adapter: adapter.fresh(json.JSONEncoder()),
    "current_agent": lambda adapter: adapter.current_agent(),
    "prepare": lambda adapter: adapter.prepare(),
    "run": lambda adapter: asyncio.run(_run(adapter)),
    "run_sync": lambda adapter: adapter.run_sync(json.JSONEncoder(), "task"),
}


async def _run(adapter: IsolatedAdapter) -> object:
    return await adapter.run(json.JSONEncoder(), "task")


@pytest.mark.parametrize("method", [CONSTRUCTOR, *ADAPTER])
def test_a_method_of_an_adapter(
    method: str, plugins: PluginManager, caplog: pytest.LogCaptureFixture
) -> None:
    spec = plugins.agent("bad")
    settings = plugins.validate_settings(spec, {})
    break_(method)
    try:
        adapter = IsolatedAdapter.create(plugins.load_target(spec), settings, spec, plugins)
        ADAPTER[method](adapter)
        (text,) = caplog.messages
    except AjetError as error:
        text = error.message
    check_named(text, "agent adapter")


def test_a_command(plugins: PluginManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ajet_cli.state.plugin_manager", lambda _: plugins)
    result = CliRunner().invoke(cli, ["bad"], prog_name="ajet")
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    check_named(line, "command")
    assert "Traceback" in CliRunner().invoke(cli, ["--debug", "bad"]).stderr


TASK = Task("a")
ENDPOINT = ModelEndpoint("http://127.0.0.1:9/v1", "key")
SOURCE: dict[str, Callable[[TaskSource], Any]] = {
    "open": lambda source: source.open(),
    "close": lambda source: source.close(),
    "splits": lambda source: source.splits(),
    "tasks": lambda source: source.tasks("train"),
    "capacity": lambda source: source.capacity(),
    "roll_out": lambda source: source.roll_out(TASK, ENDPOINT),
    "score_group": lambda source: source.score_group(TASK, [0.0]),
    "score": lambda source: source.score(TASK, "answer"),
    "reference": lambda source: source.reference(TASK),
    "question": lambda source: source.question(TASK),
    "probe": lambda source: source.probe(TASK, "nop"),
}


@pytest.mark.parametrize("method", [CONSTRUCTOR, *SOURCE])
async def test_a_method_of_a_source(method: str, plugins: PluginManager) -> None:
    break_(method)

    async def call() -> None:
        await SOURCE.get(method, str)(load_source("bad:", plugins=plugins))

    with pytest.raises(AjetError) as caught:
        await call()
    check_named(caught.value.message, "source")
    assert method == CONSTRUCTOR or f"failed in {method}" in caught.value.message


@pytest.mark.parametrize("hook", OBSERVERS)
def test_an_observer(hook: str, plugins: PluginManager, caplog: pytest.LogCaptureFixture) -> None:
    arguments: dict[str, dict[str, Any]] = {
        "ajet_state_changed": {"state": ServerState.ROLLING},
        "ajet_episode_finished": {"episode": None},
        "ajet_step_finished": {"summary": None},
    }
    with caplog.at_level(logging.ERROR):
        plugins.notify(hook, **arguments[hook])
    (record,) = caplog.records
    assert re.search(rf"{OWNER}: its hook {hook} raised", record.getMessage())
    assert "ZeroDivisionError" in caplog.text


def test_every_method_of_every_kind_is_broken_above() -> None:
    broken: dict[KindName, set[str]] = {
        "engine": {*ENGINE, "start", "close"},
        "trainer": {*TRAINER, "start", "load", "close"},
        "store": set(STORE),
        "logger": set(LOGGER),
        "merger": {"merge"},
        "advantage": {"estimate"},
        "agent": set(ADAPTER),
        "reader": {"read"},
        "judge": set(),
        "source": set(SOURCE),
        "world": set(WORLD),
        "sandbox": set(),
    }
    methods_of = {
        kind.name: public(kind.interface) - ELSEWHERE.get(kind.name, set())
        for kind in KINDS
        if kind.interface is not None
    }
    assert methods_of == broken
