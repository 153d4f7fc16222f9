"""``ajet gpu-check``: its parts, and the whole command with a tiny model on a CPU."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ajet_cli.gpu_check import machine, pair
from ajet_cli.gpu_check.checklist import Checklist, FailedCheckError, Finding, NotApplicableError
from ajet_cli.gpu_check.report import Check, GpuReport
from ajet_cli.gpu_check.work import ROLLOUTS, Gap, Load, make_batch, sample
from ajet_cli.main import cli
from ajet_core.errors import EngineError, WorkerError
from ajet_core.interfaces import WorkerContext
from ajet_core.protocol import ModelConfig
from ajet_core.timeline import Call
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


class Shown(list[Check]):
    """Collects results; `one` makes a check and returns its result."""

    def one(self, work: Callable[[], object], seconds: float = 60.0) -> Check:
        async def asynchronously() -> Finding:
            result = work()
            return await result if asyncio.iscoroutine(result) else result  # type: ignore[return-value]

        asyncio.run(Checklist(seconds, self.append).check("name", "a+b", asynchronously))
        return self[-1]


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
    if isinstance(error, FailedCheckError):
        assert check.figures == error.figures


def test_a_check_that_hangs(shown: Shown) -> None:
    check = shown.one(lambda: asyncio.Event().wait(), seconds=0.01)
    assert check.verdict == "fail"
    assert "not finished after" in check.finding


def test_no_check_begins_after_the_time(shown: Shown) -> None:
    check = shown.one(lambda: pytest.fail("it began"), seconds=0.0)
    assert (check.verdict, check.finding) == ("skip", "no time is left: raise --minutes")


def test_gaps() -> None:
    gap = Gap.of([[-1.0, -2.0], [], [-3.0]], [[-1.5, -2.0], [-9.0], [-2.0]])
    assert gap == Gap(mean=0.5, largest=1.0, tokens=3)
    assert Gap.of([[]], [[-1.0]]).tokens == 0


@pytest.mark.parametrize(
    ("gap", "why"),
    [
        (Gap(0.2, 0.2, 8), "above the limit of 0.1"),
        (Gap(math.nan, math.nan, 8), "above the limit"),
        (Gap(0.0, 0.0, 0), "no logprobs to compare"),
    ],
)
def test_gaps_that_fail(gap: Gap, why: str) -> None:
    with pytest.raises(FailedCheckError, match=why):
        pair._within(gap, 0.1, "finding", {})


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
    (check,) = GpuReport.model_validate_json(output.read_text()).checks
    assert check.verdict == "fail"
    assert "torch sees no GPU" in check.finding
    assert "580.1" in check.finding


@pytest.mark.processes
@pytest.mark.torch
@pytest.mark.timeout(300)
def test_the_whole_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    # The demo has tests of its own; here it is enough that it is called and its result is read.
    steps: list[tuple[str, ...]] = []

    async def demo(interpreter: object, *arguments: str) -> str:
        if "demo" not in arguments:
            return await machine.run_module(None, *arguments)
        steps.append(arguments)
        names = ("steps", "success_before", "success_after", "seconds", "update_seconds")
        return json.dumps(dict.fromkeys(names, 20))

    monkeypatch.setattr("ajet_cli.gpu_check.all_checks.run_module", demo)
    output = tmp_path / "report.json"
    arguments = ["--trainer", "torch", "--engine", "torch", "--size", "tiny"]
    result = CliRunner().invoke(cli, ["gpu-check", *arguments, "--output", str(output)])
    report = GpuReport.model_validate_json(output.read_text())
    verdicts = {(check.pair, check.name): check.verdict for check in report.checks}
    # The made-up demo learns nothing.
    assert verdicts.pop(("torch+torch", "demo")) == "fail", result.output
    assert result.exit_code == 1
    assert steps[0][1:] == (
        *("demo", "--trainer", "torch", "--engine", "torch", "--steps", "20", "--target", "1"),
        *("--json", "--run-dir", steps[0][-1]),
    )
    assert verdicts.pop(("torch+torch", "sleep")) == "skip"
    assert set(verdicts.values()) == {"pass"}, result.output
    assert {name for _, name in verdicts} == {
        *("interpreter", "broadcast", "random model", "channel safetensors_dir"),
        *(
            f"{one} {dtype}"
            for one in ("start", "generate", "logprobs", "trees")
            for dtype in ("bfloat16", "float32")
        ),
        "weights in_process",
    }
    of_name = {check.name: check.figures for check in report.checks}
    trees = of_name["trees float32"]
    assert trees["tree_tokens"] < trees["tokens"]  # type: ignore[operator]
    assert trees["grad_norm"] == pytest.approx(trees["tree_grad_norm"], rel=1e-4)
    assert of_name["channel safetensors_dir"]["proof"] == "checksums"
    assert report.size == "tiny"
    assert report.devices == []
