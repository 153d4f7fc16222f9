"""How servers are started, without starting any."""

from __future__ import annotations

import sys

import pytest
from ajet_engine_sglang.launch import DENIED, LaunchPlan
from ajet_engine_sglang.settings import SglangEngineSettings
from pydantic import ValidationError

from ajet_core.errors import ConfigError
from ajet_core.protocol.run import ModelConfig
from ajet_core.served.launching import check_arguments


def plan(*, cpu: bool, **options: object) -> LaunchPlan:
    return LaunchPlan(
        python=sys.executable,
        options=SglangEngineSettings.model_validate(options),
        arguments=("--chunked-prefill-size", "4096"),
        model=ModelConfig(path="/models/tiny", dtype="bfloat16", max_context=4096),
        port=8999,
        cpu=cpu,
        seed=1,
    )


def test_the_command_says_what_the_settings_say() -> None:
    line = " ".join(plan(cpu=False, tensor_parallel_size=2).command())
    for part in (
        f"{sys.executable} -m ajet_sglang_server --model-path /models/tiny",
        "--host 127.0.0.1 --port 8999",
        "--dtype bfloat16",
        "--context-length 4096",
        "--tp-size 2 --mem-fraction-static 0.85",
        "--chunked-prefill-size 4096",
    ):
        assert part in line
    assert "--device cpu" not in line
    assert "--device cpu" in " ".join(plan(cpu=True).command())


def test_the_key_is_not_in_the_command_line() -> None:
    made = plan(cpu=True)
    assert made.environment(0, "secret")["SERVED_API_KEY"] == "secret"
    assert not any("secret" in part for part in made.command())


@pytest.mark.parametrize(
    "argument", ["--host=0.0.0.0", "--trust_remote_code", "--config", "--api-k=x"]
)
def test_arguments_that_undo_what_is_needed_are_refused(argument: str) -> None:
    with pytest.raises(ConfigError, match=r"servers\.sglang\.arguments must not have"):
        check_arguments("sglang", (argument,), DENIED)


@pytest.mark.parametrize("key", ["python", "arguments", "urls", "api_key"])
def test_a_run_does_not_choose_what_is_executed_or_who_is_asked(key: str) -> None:
    with pytest.raises(ValidationError):
        SglangEngineSettings.model_validate({key: "/bin/sh"})
