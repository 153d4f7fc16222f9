"""``ajet gpu-check``: its parts, and the whole command with a tiny model on a CPU."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from ajet_cli.gpu_check import all_checks, machine, pair
from ajet_cli.gpu_check.checklist import Checklist, FailedCheckError, Finding, NotApplicableError
from ajet_cli.gpu_check.report import CheckResult, GpuReport, Verdict
from ajet_cli.gpu_check.work import LOADS, ROLLOUTS, Gap, Load, make_batch, sample
from ajet_cli.main import cli
from ajet_core.errors import ConfigError, DeadlineError, EngineError, WorkerError
from ajet_core.interfaces import (
    EngineCapabilities,
    StepReport,
    TrainerCapabilities,
    WeightUpdate,
    WorkerContext,
)
from ajet_core.plugin import PluginManager, TrainerSpec, hookimpl
from ajet_core.protocol import ModelConfig, RolloutConfig, RunConfig
from ajet_core.timeline import Call, TrainBatch
from ajet_testing.plugins import entry_points_of
from ajet_testing.scripted_engine import ScriptedEngine, ScriptedEngineSettings
from ajet_testing.servers import write_scripted_model

LOAD = Load(prompts=2, prompt_tokens=5, new_tokens=3)


def calls() -> list[Call]:
    """Completions of two prompts, all different."""
    return [
        Call(
            f"c{i}",
            f"c{i}",
            0,
            [10 + i // ROLLOUTS] * 5,
            [i, 1, 2],
            [-1.0, -2.0, -3.0],
            [0, 0, 0],
            1.0,
            "length",
        )
        for i in range(LOAD.requests)
    ]


class Shown(list[CheckResult]):
    """Collects results; `one` makes a check and returns its result."""

    def one(
        self, work: Callable[[], object], seconds: float = 60.0, limit: float = 60.0
    ) -> CheckResult:
        async def asynchronously() -> Finding:
            result = work()
            return await result if asyncio.iscoroutine(result) else result  # type: ignore[return-value]

        checklist = Checklist(seconds, self.append)
        check = asyncio.run(checklist.check("name", "a+b", asynchronously, limit))
        assert self == [check]
        return check


@pytest.fixture
def shown() -> Shown:
    return Shown()


def test_a_check_that_passes(shown: Shown) -> None:
    check = shown.one(lambda: ("fine", {"speed": 3.0}))
    assert (check.verdict, check.finding, check.figures) == ("pass", "fine", {"speed": 3.0})
    assert click.unstyle(check.line()).split()[:3] == ["pass", "a+b", "name"]


@pytest.mark.parametrize(
    ("error", "verdict", "finding"),
    [
        (NotApplicableError("no second GPU"), "skip", "no second GPU"),
        (EngineError("out of memory"), "fail", "out of memory"),
        (DeadlineError("the server did not answer"), "fail", "the server did not answer"),
        (TimeoutError("connection"), "fail", "TimeoutError: connection"),
        (RuntimeError("CUDA error"), "fail", "RuntimeError: CUDA error"),
        (FailedCheckError("too far apart", {"gap_mean": 1.0}), "fail", "too far apart"),
    ],
)
def test_an_error_is_one_checks_result(
    shown: Shown, error: Exception, verdict: str, finding: str
) -> None:
    def work() -> None:
        raise error

    check = shown.one(work)
    assert (check.verdict, check.finding) == (verdict, finding)
    # After a measurement the rest of a stage can be made.
    measured = isinstance(error, FailedCheckError | NotApplicableError)
    assert check.broke is not measured


def test_a_check_that_hangs(shown: Shown) -> None:
    check = shown.one(lambda: asyncio.Event().wait(), limit=0.01)
    assert (check.verdict, check.finding) == ("fail", "not finished after 0 s")


@pytest.mark.parametrize("seconds", [0.0, 0.01])
def test_the_end_of_the_time_is_no_failure(shown: Shown, seconds: float) -> None:
    check = shown.one(lambda: asyncio.Event().wait(), seconds=seconds)
    assert (check.verdict, check.finding) == ("skip", "cut off by --minutes")


@pytest.mark.parametrize(
    ("verdicts", "passed"),
    [(["pass", "skip"], True), (["pass", "fail"], False), (["skip"], False), ([], False)],
)
def test_a_report_without_a_passed_check_is_no_success(
    verdicts: list[Verdict], passed: bool
) -> None:
    checks = [CheckResult(name="name", verdict=verdict, finding="") for verdict in verdicts]
    assert GpuReport(checks=checks).passed is passed


def test_gaps() -> None:
    gap = Gap.of([[-1.0, -2.0], [], [-3.0]], [[-1.5, -2.0], [-9.0], [-2.0]])
    assert gap == Gap(mean=0.5, largest=1.0, tokens=3)
    assert Gap.of([[]], [[-1.0]]).tokens == 0


@pytest.mark.parametrize(
    ("gap", "why"),
    [
        (Gap(0.2, 0.2, LOAD.tokens), "above the limit of 0.1"),
        (Gap(math.nan, math.nan, LOAD.tokens), "above the limit"),
        (Gap(0.0, 0.0, LOAD.tokens - 1), "not all 24 tokens have logprobs"),
    ],
)
def test_gaps_that_fail(gap: Gap, why: str) -> None:
    with pytest.raises(FailedCheckError, match=why):
        pair._within(gap, LOAD, 0.1, "finding", {})


def test_both_layouts_train_the_same_tokens_in_the_same_groups() -> None:
    alone = make_batch(calls(), "separate", 1)
    grouped = make_batch(calls(), "group_tree", 1)
    assert [c.advantage for c in alone.calls] == [-1.0, 1.0] * (LOAD.requests // 2)
    assert {e.group for e in alone.episodes} == {"g0", "g1"}
    assert (len(alone.trees), len(grouped.trees)) == (LOAD.requests, LOAD.prompts)
    trained = [sum(tree.tokens_trained for tree in one.trees) for one in (alone, grouped)]
    assert trained == [LOAD.requests * LOAD.new_tokens] * 2
    tokens = [sum(tree.tokens for tree in one.trees) for one in (alone, grouped)]
    shared = LOAD.prompts * (ROLLOUTS - 1) * LOAD.prompt_tokens
    assert tokens[0] - tokens[1] == shared


async def test_rollouts_of_a_prompt_are_sampled_together(tmp_path: Path) -> None:
    engine = ScriptedEngine(ScriptedEngineSettings(), WorkerContext(tmp_path))
    info = await engine.start(ModelConfig(path=str(write_scripted_model(tmp_path / "model"))))
    sampled = await sample(engine, LOAD, info.vocab_size, 7)
    again = await sample(engine, LOAD, info.vocab_size, 7)
    await engine.close()
    assert len(sampled) == LOAD.requests
    prompts = [call.prompt_ids for call in sampled]
    assert prompts == [call.prompt_ids for call in again]
    assert prompts[0] == prompts[ROLLOUTS - 1] != prompts[ROLLOUTS]
    assert {len(prompt) for prompt in prompts} == {LOAD.prompt_tokens}


def smi(directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put an ``nvidia-smi`` first on the path."""
    program = directory / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("script", "names", "memory"),
    [
        (
            'case "$1" in *name*) echo "H100, 580.1";; *) echo 1024; echo 512;; esac',
            (["H100"], "580.1"),
            1.5,
        ),
        ('case "$1" in *name*) echo "GRID, 9";; *) echo "[N/A]";; esac', (["GRID"], "9"), None),
        ("exit 9", ([], ""), None),
    ],
    ids=["two numbers", "no memory", "no driver"],
)
async def test_nvidia_smi(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    names: tuple[list[str], str],
    memory: float | None,
) -> None:
    smi(tmp_path, monkeypatch, script)
    assert await machine.gpus() == names
    assert await machine.memory_used() == memory


@pytest.mark.processes
async def test_a_module_that_fails_shows_its_last_lines() -> None:
    with pytest.raises(WorkerError, match="No module named no_such_module"):
        await machine.run_module(None, "no_such_module")


@pytest.mark.processes
async def test_a_program_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    ready, program = tmp_path / "pid", tmp_path / "stubborn"
    # More output than a pipe holds must not keep it from ending either.
    program.write_text(
        f"#!/bin/sh\ntrap '' TERM\necho $$ > {ready}\nwhile :; do echo {'x' * 4096}; done\n"
    )
    program.chmod(0o755)
    running = asyncio.create_task(machine._run((str(program),), {"PATH": "/bin"}, 0.05))
    async with asyncio.timeout(20):
        while not (ready.exists() and ready.read_text().strip()):
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    with pytest.raises(ProcessLookupError):
        os.kill(int(ready.read_text()), 0)


class ObedientTrainer:
    """A trainer that returns the engine's logprobs, moved after each step.

    :param weights: the file that it publishes.
    :param shift: by how much a step moves the logprobs of tokens that were sampled before it.
    """

    def __init__(self, weights: Path, shift: float) -> None:
        self.weights = weights
        self.shift = shift

    async def step(self, batch: TrainBatch) -> StepReport:
        return StepReport(batch.step, logprobs=[call.logprobs for call in batch.calls])

    async def rehearse(self, batch: TrainBatch) -> StepReport:
        moved = [[one - self.shift for one in call.logprobs] for call in batch.calls]
        return StepReport(batch.step, logprobs=moved)

    async def publish(self, channel: str, policy_version: int) -> WeightUpdate:
        self.weights.write_text(str(policy_version))
        return WeightUpdate(channel, policy_version, str(self.weights))


@asynccontextmanager
async def scripted_pair(tmp_path: Path, shift: float, gpus: int) -> AsyncIterator[pair.RunningPair]:
    """Run the scripted engine, which can sleep, with an obedient trainer."""
    engine = ScriptedEngine(ScriptedEngineSettings(), WorkerContext(tmp_path))
    info = await engine.start(ModelConfig(path=str(write_scripted_model(tmp_path / "model"))))
    run = SimpleNamespace(
        together=False,
        channel="digest_file",
        rehearses=True,
        capabilities=EngineCapabilities(("digest_file",), sleep=True),
        config=RunConfig(
            model=ModelConfig(path="model"), rollout=RolloutConfig(engine_sleeps=True)
        ),
    )
    workers = SimpleNamespace(
        engine=engine, trainer=ObedientTrainer(tmp_path / "weights", shift), engine_info=info
    )
    setup = SimpleNamespace(load=LOAD, gpus=gpus)
    yield pair.RunningPair(setup, run, workers)  # type: ignore[arg-type]
    await engine.close()


def memory(monkeypatch: pytest.MonkeyPatch, *gib: float | None) -> None:
    """Set the memory in use, each time that it is asked for."""
    values = iter(gib)

    async def used() -> float | None:
        return next(values)

    async def unprobed(_run: object, _workers: object, update: WeightUpdate) -> WeightUpdate:
        return update

    monkeypatch.setattr(pair, "memory_used", used)
    monkeypatch.setattr(pair, "probed", unprobed)


async def test_an_engine_that_sleeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory(monkeypatch, 30.0, 5.0)
    async with scripted_pair(tmp_path, shift=1.0, gpus=1) as running:
        finding, figures = await pair.slept(running)
    assert "30.0 GiB in use awake, 5.0 GiB asleep; first tokens after waking: mean 0" in finding
    assert (figures["first_gap_max"], figures["gap_tokens"]) == (0.0, LOAD.tokens)
    assert figures["changed_mean"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("shift", "asleep", "why"),
    [
        (0.0, 5.0, "may still serve the weights before the step"),
        (1.0, 30.0, "sleeping frees no memory"),
    ],
)
async def test_an_engine_that_only_pretends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shift: float, asleep: float, why: str
) -> None:
    memory(monkeypatch, 30.0, asleep)
    async with scripted_pair(tmp_path, shift, gpus=1) as running:
        with pytest.raises(FailedCheckError, match=why):
            await pair.slept(running)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--trainer", "gone"], "gone"),
        (["--engine", "gone"], "gone"),
        (["--output", "/nowhere/report.json"], "the directory /nowhere does not exist"),
    ],
)
def test_bad_input(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(cli, ["gpu-check", *arguments])
    assert result.exit_code == 2
    assert words in result.output


@hookimpl
def ajet_register_trainers() -> Sequence[TrainerSpec]:
    """A trainer without a policy gradient, as one for supervised fine-tuning is."""
    capabilities = TrainerCapabilities(
        weight_channels=("digest_file",), algorithm_fields=frozenset({"learning_rate"})
    )
    return [TrainerSpec(name="imitating", target="gone:Gone", capabilities=capabilities)]


def test_only_trainers_with_a_policy_gradient_are_checked_by_default() -> None:
    entry_points = [
        *entry_points_of("scripted", "ajet_testing.hooks"),
        *entry_points_of("imitating", __name__),
    ]
    plugins = PluginManager(entry_points=entry_points)
    trainers = {trainer.name for trainer, _ in all_checks._pairs(plugins, all_checks.Components())}
    assert trainers == {"scripted"}
    named = all_checks.Components(trainers=("imitating",))
    assert {trainer.name for trainer, _ in all_checks._pairs(plugins, named)} == {"imitating"}


def test_no_trainer_is_installed() -> None:
    with pytest.raises(ConfigError, match="pip install"):
        all_checks._pairs(PluginManager(entry_points=[]), all_checks.Components())


@pytest.mark.torch
def test_every_size_of_a_model_has_a_load() -> None:
    from ajet_torch.on_device import SIZES

    assert LOADS.keys() == SIZES.keys()


@pytest.mark.processes
@pytest.mark.torch
def test_a_cpu_build_of_torch_beside_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("torch sees a GPU")
    smi(tmp_path, monkeypatch, 'echo "H100, 580.1"')
    output = tmp_path / "report.json"
    arguments = ["--trainer", "torch", "--engine", "torch", "--output", str(output)]
    result = CliRunner().invoke(cli, ["gpu-check", *arguments])
    assert result.exit_code == 1
    check, skipped = GpuReport.model_validate_json(output.read_text()).checks
    assert check.verdict == "fail"
    assert "torch sees no GPU" in check.finding
    assert "580.1" in check.finding
    assert (skipped.pair, skipped.verdict) == ("torch+torch", "skip")


@pytest.mark.nightly
@pytest.mark.processes
@pytest.mark.torch
@pytest.mark.timeout(400)
def test_the_whole_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    output = tmp_path / "report.json"
    arguments = ["--trainer", "torch", "--engine", "torch", "--size", "tiny", "--demo-steps", "1"]
    result = CliRunner().invoke(cli, ["gpu-check", *arguments, "--output", str(output)])
    assert result.exit_code == 0, result.output
    report = GpuReport.model_validate_json(output.read_text())
    names = [check.name for check in report.checks]
    measured = ("start", "generate", "logprobs", "weights", "trees")
    assert names == [
        *("interpreter", "broadcast", "random model"),
        *(f"{name} {dtype}" for dtype in ("bfloat16", "float32") for name in measured),
        *("channel safetensors_dir", "channel delta", "sleep", "demo"),
    ]
    checks = dict(zip(names, report.checks, strict=True))
    assert [name for name in names if checks[name].verdict != "pass"] == ["sleep"]
    trees = checks["trees float32"].figures
    assert trees["tree_tokens"] < trees["tokens"]  # type: ignore[operator]
    weights = checks["weights float32"].figures
    assert weights["changed_mean"] > 100 * weights["gap_mean"]  # type: ignore[operator]
    for channel in ("safetensors_dir", "delta"):
        assert checks[f"channel {channel}"].figures["proof"] == "checksums"
    assert checks["demo"].figures["steps"] == 1
    assert (report.size, report.devices) == ("tiny", [])
