"""Each hook has an example in the documentation, which is a plugin that works."""

from __future__ import annotations

import importlib
import inspect
import logging
import math
import os
import random
import re
import shutil
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agentjet import load_judge, read_tasks
from agentjet.agents.adapters import Adapters
from ajet_core.errors import (
    ConfigError,
    ContextLengthError,
    SandboxError,
    TrainerError,
    UnreadableFileError,
)
from ajet_core.interfaces import (
    TASK_PROBES,
    BoxExit,
    BoxProgram,
    GenerateRequest,
    SamplingParams,
    WeightUpdate,
    WorkerContext,
)
from ajet_core.plugin import PluginManager
from ajet_core.plugin.kinds import KINDS
from ajet_core.plugin.loading import HOOK_NAMES
from ajet_core.protocol import AlgorithmConfig, ModelConfig, ServerState, StepSummary
from ajet_core.timeline import TrainBatch, TrainEpisode, TrainSegment, TrainTree
from ajet_exec import load_sandbox
from ajet_sources import load_source
from ajet_testing.plugins import plugins_with
from ajet_testing.suites.advantage_suite import AdvantageSuite, batch_of
from ajet_testing.suites.judge_suite import UNUSABLE, JudgeSuite
from ajet_testing.suites.logger_suite import LoggerSuite
from ajet_testing.suites.samples import conversation, make_episode
from ajet_worlds import load_world
from ajet_worlds.rehearsal import rehearse

WHEELS = sorted((Path(__file__).parent / "wheels").glob("*.whl"))
DOCS = Path(__file__).parents[2] / "docs"
PAGES = [path.read_text(encoding="utf-8") for path in sorted((DOCS / "plugins").glob("*.md"))]


def example_of(hook: str) -> str:
    """The only Python in the hook's section, which is a plugin with this hook."""
    (page,) = [page for page in PAGES if f"\n## `{hook}(" in page]
    section = page.partition(f"\n## `{hook}(")[2].partition("\n## `")[0]
    (source,) = re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE) or [""]
    assert f"\n@hookimpl\ndef {hook}(" in source, f"docs/plugins needs an example of {hook}"
    return str(source)


class Example:
    """The example of a hook, as an installed plugin."""

    def __init__(self, hook: str, directory: Path, plugins: PluginManager, name: str) -> None:
        self.directory = directory
        self.plugins = plugins
        self.old = name.endswith("1-2")
        # The module of an example of `ajet_step_finished`.
        self.module = "my_plugin"
        if name != "example":
            self.module = f"{name.replace('-', '_')}.{hook.removeprefix('ajet_')}"
        (info,) = [info for info in plugins.plugins(load=True) if info.name == name]
        assert info.problem == ""
        if hook not in info.hooks:
            assert name != "example"
            pytest.skip("that hook API has no such hook")
        kinds = [kind.name for kind in KINDS if kind.hook == hook]
        components = [name.split(":") for name in info.components]
        self.components = [one for one in components if one[0] in kinds]

    @classmethod
    def of_page(cls, hook: str, directory: Path) -> Example:
        """The example of the documentation, which has this hook alone."""
        (directory / "my_plugin.py").write_text(example_of(hook))
        importlib.invalidate_caches()
        example = cls(hook, directory, plugins_with("example", "my_plugin"), "example")
        (info,) = [info for info in example.plugins.plugins(load=True) if info.name == "example"]
        assert info.hooks == (hook,)
        return example

    @classmethod
    def of_wheel(cls, hook: str, directory: Path, wheel: Path) -> Example:
        """The example in a wheel of an earlier hook API, which has all hooks of it."""
        importlib.invalidate_caches()
        name = "-".join(wheel.name.split("-")[0].split("_"))
        return cls(hook, directory, PluginManager(), name)

    def make(self, *arguments: Any, **settings: Any) -> Any:
        """Make the component that the example registers."""
        ((kind, name),) = self.components
        spec: Any = self.plugins.component(kind, name)  # type: ignore[arg-type]
        checked = self.plugins.validate_settings(spec, settings)
        return self.plugins.load_target(spec)(checked, *arguments)

    @property
    def context(self) -> WorkerContext:
        """A run in the directory."""
        return WorkerContext(self.directory)


@pytest.fixture(params=[None, *WHEELS], ids=lambda wheel: wheel.name if wheel else "page")
def example(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Example]:
    """The example of the hook that the name of the test ends with, of today and of earlier."""
    wheel: Path | None = request.param
    monkeypatch.syspath_prepend(str(tmp_path if wheel is None else wheel))
    monkeypatch.chdir(tmp_path)
    name = request.node.originalname.removeprefix("test_")
    (hook,) = [hook for hook in HOOK_NAMES if name.startswith(hook.removeprefix("ajet_"))]
    if wheel is None:
        yield Example.of_page(hook, tmp_path)
    else:
        yield Example.of_wheel(hook, tmp_path, wheel)
    for module in list(sys.modules):
        if module == "my_plugin" or module.startswith("ajet_examples_"):
            del sys.modules[module]


async def test_register_engines(example: Example) -> None:
    engine = example.make(example.context, vocab_size=8)
    assert (await engine.start(ModelConfig(path="/m"))).vocab_size == 8
    await engine.update_weights(WeightUpdate("safetensors_dir", 3, "/m"))
    request = GenerateRequest("r", [1], SamplingParams(max_tokens=5))
    (chunk,) = [chunk async for chunk in engine.generate(request)]
    assert len(chunk.token_ids) == 5
    assert set(chunk.token_ids) <= set(range(8))
    assert chunk.logprobs == pytest.approx([math.log(1 / 8)] * 5)
    assert (chunk.policy_version, chunk.finish_reason) == (3, "length")
    if not example.old:
        with pytest.raises(ContextLengthError):
            await anext(engine.generate(replace(request, prompt_ids=[1] * 4096)))
        assert (await engine.stats()).sampled_tokens == 5
    for call in (engine.pause, engine.resume, engine.stats, engine.close):
        await call()


def test_register_trainers(example: Example) -> None:
    model = example.directory / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")

    def make(**settings: Any) -> Any:
        trainer = example.make(example.context, **settings)
        trainer.start(ModelConfig(path=str(model)), AlgorithmConfig())
        return trainer

    trainer = make()
    assert trainer.step(TrainBatch("b", 4, [], [], [], 0)).step == 4
    if not example.old:
        tree = TrainTree([TrainSegment(-1, [1] * 9, [])])
        with pytest.raises(TrainerError, match="max_tokens allows 8"):
            make(max_tokens=8).step(TrainBatch("b", 5, [], [], [tree], 9))
        with pytest.raises(TrainerError, match="cannot load"):
            make().load(example.directory / "missing")
    assert trainer.publish("safetensors_dir", 5).location == str(model)
    trainer.save(example.directory / "saved")
    trainer.load(example.directory / "saved")
    trainer.export(example.directory / "exported")
    trainer.close()
    assert (example.directory / "exported" / "config.json").read_text() == "{}"


async def test_register_stores(example: Example) -> None:
    store = example.make(example.context, outcomes="over.txt")
    await store.open()
    episode = make_episode("e1")
    await store.append(episode)
    await store.append(replace(episode, state="ended", reward=0.5))
    assert (await store.get_episode("e1")).reward == 0.5
    outcomes = example.directory / "over.txt"
    assert outcomes.read_text() == "e1 ended 0.5\n"
    if not example.old:
        outcomes.unlink()
        outcomes.mkdir()
        await store.append(replace(episode, episode_id="e2", state="aborted"))
        assert (await store.get_episode("e2")).state == "aborted"
    await store.close()


def test_register_mergers(example: Example) -> None:
    calls = conversation(4, episode_id="e1")
    merger = example.make(example.context)
    assert merger.promises.exact
    tree = merger.merge("e1", calls[::-1])
    assert [tree.path_ids(end) for end in tree.ends] == [call.token_ids for call in calls]
    assert tree.tokens == tree.tokens_raw
    if not example.old:
        with pytest.raises(ValueError, match="episode e2"):
            example.make(example.context, checks=True).merge("e2", calls)


def test_register_advantages(example: Example) -> None:
    settings = {} if example.old else {"spread": 2.0}

    class Suite(AdvantageSuite):
        def make_estimator(self) -> Any:
            return example.make(AlgorithmConfig(), **settings)

    Suite().test_the_same_batch_has_the_same_advantages()
    Suite().test_a_better_episode_of_a_task_has_a_larger_advantage()
    Suite().test_the_order_of_episodes_does_not_matter()
    episodes = [TrainEpisode(f"e{reward}", "g", reward) for reward in (0.5, 0.0, 1.0)]
    calls = [conversation(2, episode_id=episode.episode_id) for episode in episodes]
    places = [1, 0, 2] if example.old else [0.0, -2.0, 2.0]
    assert Suite().make_estimator().estimate(episodes, calls) == [[place] * 2 for place in places]
    if not example.old:
        batch = batch_of([1.0, 0.0, 1.0], [1, 2, 1], tasks=3)
        assert Suite().make_estimator().estimate(*batch) == [[0.0], [0.0, 0.0], [0.0]]
        with pytest.raises(ConfigError, match="no call credit"):
            example.make(AlgorithmConfig(call_credit="process_supervision"))
        with pytest.raises(ConfigError, match="spread"):
            example.make(AlgorithmConfig(), spread=0.0)


async def test_register_agents(example: Example, monkeypatch: pytest.MonkeyPatch) -> None:
    class Box:
        def copy(self) -> Box:
            return Box()

        async def run(self, task: str) -> str:
            return f"{task}!"

    Box.__module__ = "boxes"
    adapters = Adapters(example.plugins)
    assert adapters.in_use() == []
    monkeypatch.setitem(sys.modules, "boxes", types.ModuleType("boxes"))
    box = Box()
    adapter = adapters.of(box)
    assert adapter.fresh(box) is not box
    assert await adapter.run(adapter.fresh(box), "go") == "go!"
    if example.old:
        return
    Path("ajet.toml").write_text("[agents.boxes]\npolite = true\n")
    adapter = Adapters(example.plugins).of(box)
    assert await adapter.run(box, "go") == "Please, go!"
    with pytest.raises(TypeError):
        await adapter.run(box, {"no": "text"})
    monkeypatch.delattr(Box, "copy")
    with pytest.raises(ConfigError, match="cannot be copied"):
        adapter.fresh(box)


def test_register_loggers(example: Example) -> None:
    class Suite(LoggerSuite):
        metrics = frozenset({"reward_mean"})
        evaluations = False

        def make_logger(self, context: WorkerContext) -> Any:
            return example.make(context, file="mine.csv")

        def read_steps(self, context: WorkerContext) -> list[tuple[int, dict[str, float]]]:
            path = context.run_dir / "mine.csv"
            lines = path.read_text().splitlines() if path.exists() else []
            steps = [line.split(",") for line in lines if not line.startswith("#")]
            return [(int(step), {"reward_mean": float(reward)}) for step, reward in steps]

    run = example.directory / "run"
    Suite().test_steps_come_back_in_order(example.directory)
    text = (run / "mine.csv").read_text()
    # Hook API 1.2 had no beginning and end of a run.
    old = "1,0.25\n2,0.0\n4,-1e+30\n"
    assert text in (f"# /models/tiny\n{old}# done\n", old)
    assert example.old == (text == old)
    for test in (
        Suite().test_a_run_that_continues_adds_to_what_is_there,
        Suite().test_one_logger_records_several_runs,
        Suite().test_a_logger_without_records_can_be_closed,
    ):
        shutil.rmtree(run)
        test(example.directory)


def test_register_worlds(example: Example) -> None:
    Path("ajet.toml").write_text("[worlds.say]\nwords = ['up', 'down']\n")
    world = load_world("say", plugins=example.plugins)
    played = rehearse(world, "t", world.expert, random.Random(0))
    assert played.outcome.success == 1.0
    assert played.exchanges[0].answer.text in {"up", "down"}


def test_register_readers(example: Example) -> None:
    Path("tasks.txt").write_bytes("caf\xe9\ntea\n".encode("latin-1"))
    Path("ajet.toml").write_text("[readers.lines]\nencoding = 'latin-1'\n")
    tasks = read_tasks("lines", "tasks.txt", plugins=example.plugins)
    assert [task.id for task in tasks] == ["caf\xe9", "tea"]
    with pytest.raises(UnreadableFileError, match=r"missing\.txt"):
        read_tasks("lines", "missing.txt", plugins=example.plugins)
    if not example.old:
        Path("damaged.txt").write_bytes(b"tea\n\x00\n")
        with pytest.raises(UnreadableFileError, match=r"damaged\.txt, line 2"):
            read_tasks("lines", "damaged.txt", plugins=example.plugins)


def test_register_judges(example: Example) -> None:
    judge = load_judge("brief", {"words": 4}, example.plugins)
    if example.old:
        assert [judge("task", "word " * count) for count in (0, 1, 5)] == [1.0, 0.75, 0.0]
        return

    class Suite(JudgeSuite):
        examples = (
            ({"answer": "4"}, "4", 0.75),
            ({"answer": "4"}, "It is 4", 0.25),
            ({"answer": "4"}, "I think that it is 4", 0.0),
            ({"answer": "5"}, "4", 0.0),
        )

        def make_judge(self) -> Any:
            return load_judge("brief", {"words": 4}, example.plugins)

    Suite().test_examples_have_their_rewards()
    Suite().test_episodes_at_the_same_time_do_not_disturb_each_other()
    for result in UNUSABLE:
        Suite().test_unusable_results_have_rewards_that_are_no_better(result)
    with pytest.raises(TypeError, match="return the answer"):
        judge({"answer": "4"}, None)
    with pytest.raises(ConfigError, match=r"judges\.brief\.answer"):
        judge({"solution": "4"}, "4")


async def test_register_sources(example: Example) -> None:
    Path("ajet.toml").write_text("[sources.sums]\nsize = 5\n")
    async with load_source("sums:hard?size=8", plugins=example.plugins) as source:
        train, others = source.tasks("train"), source.tasks("eval")
        assert len({task.id for task in [*train, *others]}) == 16
        for task in train:
            rewards = [await source.probe(task, probe) for probe in TASK_PROBES]
            assert [its and its.reward for its in rewards] == [1.0, 0.0, 0.0, 0.0]
    async with load_source("sums:easy", plugins=example.plugins) as source:
        assert len(source.tasks("train")) == 5
    with pytest.raises(ConfigError, match="write sums:easy or sums:hard, not 'odd'"):
        async with load_source("sums:odd", plugins=example.plugins):
            pass


@pytest.mark.processes
async def test_register_sandboxes(example: Example) -> None:
    Path("ajet.toml").write_text("[sandboxes.group]\nlang = 'cs'\n")
    sandbox = load_sandbox("group", plugins=example.plugins)

    async def run(script: str, **terms: Any) -> tuple[BoxExit, str]:
        program = BoxProgram(
            argv=terms.pop("argv", ("sh", "-c", script)),
            environ={"PATH": os.environ["PATH"]},
            work=example.directory,
            stdout=example.directory / "out",
            stderr=example.directory / "err",
        )
        ended = await sandbox.run(program, **{"timeout": 60.0, "grace": 60.0, **terms})
        return ended, program.stdout.read_text()

    ended, text = await run("echo $LANG; pwd; exit 3")
    assert (ended.status, ended.timed_out) == (3, False)
    assert text == f"cs\n{example.directory}\n"
    ended, text = await run("trap 'echo bye; exit 4' TERM; sleep 600 & wait", timeout=1.0)
    assert (ended.status, ended.timed_out, text) == (4, True, "bye\n")
    ended, text = await run("trap '' TERM; while true; do sleep 1; done", timeout=0.2, grace=0.2)
    assert (ended.status, ended.timed_out) == (137, True)
    with pytest.raises(SandboxError, match="no-such-program"):
        await run("", argv=("no-such-program",))


def test_register_commands(example: Example) -> None:
    Path("metrics.jsonl").write_text('{"step": 1, "reward_mean": 0.25}\n')
    command = example.plugins.load_command(example.plugins.command("rewards"))
    assert CliRunner().invoke(command, ["."]).output == "1: 0.25\n"
    if example.old:
        return
    with Path("metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "reward_mean": 0.5}\n')
    assert CliRunner().invoke(command, [".", "--last", "1"]).output == "2: 0.5\n"
    Path("metrics.jsonl").write_text("")
    assert "no step has been trained yet" in CliRunner().invoke(command, ["."]).output
    Path("metrics.jsonl").unlink()
    assert isinstance(CliRunner().invoke(command, ["."]).exception, UnreadableFileError)


def test_state_changed(example: Example, caplog: pytest.LogCaptureFixture) -> None:
    for state in ServerState:
        example.plugins.notify("ajet_state_changed", state=state)
    assert said(caplog) == ["the run is paused"]


def test_episode_finished(example: Example, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    episode = make_episode("e1", group="g")
    for ended in (
        replace(episode, state="ended", reward=1.0),
        replace(episode, state="aborted", reason="too slow"),
    ):
        example.plugins.notify("ajet_episode_finished", episode=ended)
    assert said(caplog) == ["g-1: too slow"]


def test_step_finished(example: Example, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    summary = StepSummary(step=3, policy_version=3, metrics={"reward_mean": 0.5})
    example.plugins.notify("ajet_step_finished", summary=summary)
    if not example.old:
        sys.modules[example.module].waiting.join()
    assert said(caplog) == ["step 3: 0.500"]


def test_step_finished_drops_what_it_cannot_send(
    example: Example, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if example.old:
        pytest.skip("the example of that hook API sends at once")
    monkeypatch.setattr(sys.modules[example.module], "start_sender", lambda: None)
    for step in range(101):
        summary = StepSummary(step=step, policy_version=3, metrics={"reward_mean": 0.5})
        example.plugins.notify("ajet_step_finished", summary=summary)
    assert said(caplog) == ["step 100 is not sent: 100 steps are waiting"]


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the plugin has logged; an exception of it would be logged by the manager."""
    return [record.getMessage() for record in caplog.records if record.name != "asyncio"]


@pytest.mark.parametrize("hook", HOOK_NAMES)
def test_every_hook_has_an_example_that_is_tested(hook: str) -> None:
    assert example_of(hook)
    tested = globals()[f"test_{hook.removeprefix('ajet_')}"]
    assert "example" in inspect.signature(tested).parameters


def test_there_are_no_other_examples_on_the_page() -> None:
    assert sum(page.count("```python\n") for page in PAGES) == len(HOOK_NAMES)
