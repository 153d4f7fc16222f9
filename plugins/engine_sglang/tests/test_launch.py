"""How servers are started, without starting any that would serve."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from ajet_engine_sglang.launch import DENIED, LaunchPlan
from ajet_engine_sglang.settings import SglangEngineSettings
from pydantic import ValidationError
from tiny_sglang import CONTEXT, make_engine

from ajet_core.errors import ConfigError, EngineError
from ajet_core.interfaces import ModelServers
from ajet_core.protocol import ModelConfig
from ajet_engines.served.launching import check_arguments
from ajet_testing.served_models import too_large, write_model


def plan(*, cpu: bool, model: ModelConfig | None = None, **options: object) -> LaunchPlan:
    return LaunchPlan(
        python=sys.executable,
        options=SglangEngineSettings.model_validate(options),
        arguments=("--chunked-prefill-size", "4096"),
        model=model or ModelConfig(path="/models/tiny", dtype="bfloat16"),
        socket=Path("/run/0.sock"),
        cpu=cpu,
        seed=1,
    )


def test_the_command_says_what_the_settings_say() -> None:
    line = " ".join(plan(cpu=False, tensor_parallel_size=2).command())
    for part in (
        f"{sys.executable} -m ajet_sglang_server --model-path /models/tiny",
        "--dtype bfloat16",
        "--tp-size 2 --mem-fraction-static 0.85",
        "--chunked-prefill-size 4096",
    ):
        assert part in line
    assert "--enable-memory-saver" not in line
    sleeping = plan(cpu=False, sleep=True).command()
    assert {"--enable-memory-saver", "--enable-weights-cpu-backup"} <= set(sleeping)
    # There it needs a package that is none for CPUs.
    assert "--enable-memory-saver" not in plan(cpu=True, sleep=True).command()
    assert "--device cpu" not in line
    assert "--device cpu" in " ".join(plan(cpu=True).command())


@pytest.mark.parametrize(
    ("limit", "asked", "told"), [(8192, 4096, 4102), (4098, 4096, 4098), (4096, 4096, 4096)]
)
def test_the_context_is_told_with_what_sglang_leaves_unused(
    tmp_path: Path, limit: int, asked: int, told: int
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": limit}))
    model = ModelConfig(path=str(tmp_path), dtype="float32", max_context=asked)
    command = plan(cpu=True, model=model).command()
    assert command[command.index("--context-length") + 1] == str(told)


def test_neither_key_nor_socket_are_in_the_command_line() -> None:
    made = plan(cpu=True)
    found = made.environment(0, "secret")
    assert found["SERVED_API_KEY"] == "secret"
    assert found["SERVED_SOCKET"] == "/run/0.sock"
    assert not any("secret" in part or "0.sock" in part for part in made.command())


def test_servers_listen_where_no_other_user_gets(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, ModelServers())
    directory = engine.sockets.path
    assert directory.stat().st_mode & 0o077 == 0
    assert directory.stat().st_uid == os.getuid()


def test_logprobs_are_at_the_temperature_whatever_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SGLANG_RETURN_ORIGINAL_LOGPROB", "1")
    assert plan(cpu=True).environment(0, "key")["SGLANG_RETURN_ORIGINAL_LOGPROB"] == "0"


@pytest.mark.parametrize(
    "argument",
    [
        "--host=0.0.0.0",
        "--trust_remote_code",
        "--config",
        "--api-k=x",
        "--preferred-sampling-params={}",
        "--tokenizer-worker-num=2",
        "--enable-http2",
    ],
)
def test_arguments_that_undo_what_is_needed_are_refused(argument: str) -> None:
    with pytest.raises(ConfigError, match=r"servers\.sglang\.arguments must not contain"):
        check_arguments("sglang", (argument,), DENIED)


@pytest.mark.parametrize("key", ["python", "arguments", "urls", "api_key"])
def test_a_run_does_not_choose_what_is_executed_or_who_is_asked(key: str) -> None:
    with pytest.raises(ValidationError):
        SglangEngineSettings.model_validate({key: "/bin/sh"})


@pytest.mark.sglang
@pytest.mark.timeout(600)
async def test_a_model_that_does_not_fit_is_told_with_what_to_set(
    python: str, tmp_path: Path
) -> None:
    path = too_large(write_model(tmp_path / "model", 0, CONTEXT), tmp_path / "large")
    engine = make_engine(tmp_path / "run", ModelServers(python=python))
    with pytest.raises(EngineError, match=r"the model does not fit: lower model\.max_context"):
        await engine.start(ModelConfig(path=path, dtype="float32"))


async def test_servers_that_were_not_started_for_it_do_not_sleep(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"cannot sleep: set engine\.settings\.sleep"):
        await make_engine(tmp_path, ModelServers()).sleep()


async def test_an_interpreter_without_sglang_is_told_with_what_mends_it(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, ModelServers(python=sys.executable))
    with pytest.raises(EngineError, match=r"has no sglang: .*ajet env create sglang"):
        await engine.start(ModelConfig(path="/models/tiny", dtype="float32"))


def test_servers_get_no_setting_of_ours_and_no_module_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AJET_TOKEN", "secret")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    found = plan(cpu=True, threads=2).environment(0, "key")
    assert "AJET_TOKEN" not in found
    own, shared = map(Path, found["PYTHONPATH"].split(os.pathsep))
    assert (own / "ajet_sglang_server.py").is_file()
    assert (shared / "ajet_shaping.py").is_file()
    assert found["OMP_NUM_THREADS"] == "2"


def test_replicas_get_gpus_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    two = plan(cpu=False, replicas=2, tensor_parallel_size=2)
    assert [two.environment(n, "k")["CUDA_VISIBLE_DEVICES"] for n in (0, 1)] == ["4,5", "6,7"]
    with pytest.raises(ConfigError, match="lists 4"):
        plan(cpu=False, replicas=3, tensor_parallel_size=2).environment(2, "k")
