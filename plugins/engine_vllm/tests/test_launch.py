"""How servers are started, without starting any that would serve."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from ajet_engine_vllm.launch import DENIED, LaunchPlan
from ajet_engine_vllm.settings import VllmEngineSettings
from pydantic import ValidationError
from tiny_vllm import make_engine

from ajet_core.errors import ConfigError, EngineError
from ajet_core.interfaces import ModelServers
from ajet_core.protocol import ModelConfig
from ajet_engines.served.launching import check_arguments, explained, find_python
from ajet_installation.environment import RECORD, UNFINISHED
from ajet_testing.backends import environment
from ajet_testing.served_models import Models, too_large


def plan(
    arguments: tuple[str, ...] = (),
    *,
    cpu: bool = True,
    model: ModelConfig | None = None,
    **options: object,
) -> LaunchPlan:
    return LaunchPlan(
        python=sys.executable,
        options=VllmEngineSettings.model_validate(options),
        arguments=arguments,
        model=model or ModelConfig(path="/models/tiny", dtype="bfloat16", max_context=4096),
        socket=Path("/run/0.sock"),
        cpu=cpu,
        seed=1,
    )


def test_the_command_says_what_the_settings_say() -> None:
    command = plan(("--block-size", "32"), cpu=False, tensor_parallel_size=2, sleep=True).command()
    line = " ".join(command)
    for part in (
        f"{sys.executable} -m vllm.entrypoints.openai.api_server --model /models/tiny",
        "--uds /run/0.sock",
        "--dtype bfloat16",
        "--max-model-len 4096",
        "--tensor-parallel-size 2",
        "--gpu-memory-utilization 0.9",
        "--enable-sleep-mode",
        "--logprobs-mode processed_logprobs",
        "--block-size 32",
    ):
        assert part in line
    assert "--enforce-eager" not in command
    assert "--enforce-eager" in plan().command()
    # vLLM would not start there.
    assert "--enable-sleep-mode" not in plan(sleep=True).command()


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        ({"dtype": "float32"}, "float32"),
        ({"torch_dtype": "float16"}, "float16"),
        ({"text_config": {"dtype": "bfloat16"}}, "bfloat16"),
        ({}, "auto"),
    ],
)
def test_a_model_is_served_in_the_precision_of_its_files(
    tmp_path: Path, config: dict[str, object], dtype: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    command = plan(model=ModelConfig(path=str(tmp_path))).command()
    assert command[command.index("--dtype") + 1] == dtype


@pytest.mark.parametrize(
    "argument",
    [
        "--model=/etc",
        "--trust-remote-code",
        "--trust_remote_code",
        "--trust",
        "--config",
        "--host=0.0.0.0",
        "--logprobs-mode=raw_logprobs",
        "--speculative-config.method=ngram",
        "--worker-extension-cls=os.system",
        "-tp=8",
    ],
)
def test_arguments_that_undo_what_is_needed_are_refused(argument: str) -> None:
    with pytest.raises(ConfigError, match="must not contain"):
        check_arguments("vllm", ("--block-size", "16", argument), DENIED)


def test_other_arguments_are_passed_on() -> None:
    passed = ("--block-size", "16", "--enable-expert-parallel", "--quantization=fp8")
    check_arguments("vllm", passed, DENIED)


@pytest.mark.parametrize("key", ["python", "arguments", "urls", "api_key", "env"])
def test_a_run_does_not_choose_what_is_executed_or_who_is_asked(key: str) -> None:
    with pytest.raises(ValidationError):
        VllmEngineSettings.model_validate({key: "/bin/sh"})


def test_servers_get_no_setting_of_ours_and_no_module_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AJET_TOKEN", "secret")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    found = plan(threads=2).environment(0)
    assert "AJET_TOKEN" not in found
    own, shared = map(Path, found["PYTHONPATH"].split(os.pathsep))
    assert (own / "ajet_vllm_worker.py").is_file()
    assert (shared / "ajet_shaping.py").is_file()
    # Its sampler is made differently; a GPU would choose it.
    assert found["VLLM_USE_V2_MODEL_RUNNER"] == "0"
    assert found["OMP_NUM_THREADS"] == "2"
    assert found["VLLM_CPU_KVCACHE_SPACE"] == "4"


def test_servers_listen_where_no_other_user_gets(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, ModelServers())
    directory = engine.sockets.path
    assert directory.stat().st_mode & 0o077 == 0
    assert directory.stat().st_uid == os.getuid()


def test_replicas_get_gpus_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    two = plan(cpu=False, replicas=2, tensor_parallel_size=2)
    assert [two.environment(n)["CUDA_VISIBLE_DEVICES"] for n in (0, 1)] == ["4,5", "6,7"]
    with pytest.raises(ConfigError, match="lists 4"):
        plan(cpu=False, replicas=3, tensor_parallel_size=2).environment(2)


def test_an_interpreter_with_vllm_is_found_or_the_line_that_makes_one_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # There may be environments beside this one.
    monkeypatch.setattr("ajet_installation.environment.BESIDE", None)
    with pytest.raises(EngineError, match="ajet env create vllm"):
        find_python("vllm", None, tmp_path / "runs" / "a")
    with pytest.raises(EngineError, match="no interpreter at /nowhere/python"):
        find_python("vllm", "/nowhere/python", tmp_path)
    made = environment(tmp_path / ".venvs", "vllm")
    monkeypatch.chdir("/")
    assert find_python("vllm", None, tmp_path / "runs" / "a") == str(made.python)
    (made.directory / RECORD).unlink()
    (made.directory / UNFINISHED).touch()
    with pytest.raises(EngineError, match=r"vllm is not finished.*ajet env create vllm"):
        find_python("vllm", None, tmp_path / "runs" / "a")


async def test_servers_that_were_not_started_for_it_do_not_sleep(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"cannot sleep: set engine\.settings\.sleep"):
        await make_engine(tmp_path, ModelServers()).sleep()


async def test_an_interpreter_without_vllm_is_told_with_what_mends_it(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, ModelServers(python=sys.executable))
    with pytest.raises(EngineError, match=r"this interpreter has no vllm: .*ajet env create vllm"):
        await engine.start(ModelConfig(path="/models/tiny", dtype="float32"))


@pytest.mark.vllm
@pytest.mark.timeout(600)
async def test_a_model_that_fits_nowhere_is_told_with_what_to_set(
    python: str, models: Models, tmp_path: Path
) -> None:
    engine = make_engine(tmp_path / "run", ModelServers(python=python))
    path = too_large(models.paths[0], tmp_path / "large")
    with pytest.raises(EngineError, match=r"the model does not fit: lower model\.max_context"):
        await engine.start(ModelConfig(path=path, dtype="float32"))


@pytest.mark.parametrize(
    "line",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
        "ValueError: No available memory for the cache blocks.",
        "is larger than the available KV cache memory (1.0 GiB)",
        "Free memory on device (1/80 GiB) on startup is less than desired GPU memory utilization",
    ],
)
def test_a_model_that_does_not_fit_is_told_with_what_to_set(line: str) -> None:
    told = explained(EngineError(f"vLLM server 0 ended by itself; its last lines:\n{line}"), "vllm")
    assert told.message.startswith("the model does not fit: lower model.max_context")
    assert line in told.message
