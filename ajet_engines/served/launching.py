"""Launching of model servers: interpreter, environment, GPUs, and advice on failures."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ajet_core.errors import ConfigError, EngineError
from ajet_core.protocol.run import ModelConfig
from ajet_engines.model_config import read_model_config

__all__ = [
    "SHARED_IN_SERVER",
    "check_arguments",
    "dtype_of",
    "explained",
    "find_python",
    "gpus_of",
    "has_gpu",
    "how_to_install",
    "model_config",
    "server_environment",
]

SHARED_IN_SERVER = Path(__file__).parents[1] / "in_server"
"""Directory of agentjet's modules that run in servers of every kind."""

_NO_MEMORY = (
    r"out of memory|No available memory for the cache|larger than the available KV cache"
    r"|not enough memory|less than desired GPU memory utilization|can(no|')t allocate memory"
)
_HOW_TO_FIT = (
    "the model does not fit: lower model.max_context or set model.dtype to bfloat16; or, in "
    "engine.settings, use more GPUs per server, or only as much of their memory as is free"
)


def find_python(module: str, chosen: str | None, run_dir: Path) -> str:
    """Find the interpreter that has a server's module.

    This is the operator's choice, this interpreter, or that of the environment with the module's
    name.

    :param chosen: the operator's choice.
    :param run_dir: environments are searched in ``.venvs`` of the working directory and of the
        directories above `run_dir`.
    :raises EngineError: there is none.
    """
    if chosen is not None:
        if not Path(chosen).is_file():
            raise EngineError(f"servers.{module}.python: no interpreter at {chosen}")
        return chosen
    if importlib.util.find_spec(module) is not None:
        return sys.executable
    # Imported here because workers import this module and few need it.
    from ajet_installation.environment import environments_in, implied_roots, is_unfinished

    roots = implied_roots(run_dir)
    if (environment := environments_in(roots).get(module)) is not None:
        return str(environment.python)
    half = next((root / module for root in roots if is_unfinished(root / module)), None)
    hint = "" if half is None else f" ({half} is not finished)"
    raise EngineError(f"found no interpreter with {module}{hint}: {how_to_install(module)}")


def how_to_install(module: str) -> str:
    """Return advice for a missing interpreter."""
    return (
        f"create an environment for it (ajet env create {module}), or set an interpreter "
        f'that has it in ajet.toml: [servers.{module}] python = ".../bin/python"'
    )


def explained(error: EngineError, module: str) -> EngineError:
    """Return the error of a server that did not start, with advice if the cause is known."""
    advice = (
        (
            rf"No module named '?{module}\b",
            f"this interpreter has no {module}: {how_to_install(module)}",
        ),
        (
            _NO_MEMORY,
            _HOW_TO_FIT,
        ),
    )
    for pattern, what in advice:
        if re.search(pattern, error.message, re.IGNORECASE):
            return EngineError(f"{what}\n{error.message}")
    return error


def check_arguments(engine: str, arguments: tuple[str, ...], denied: Collection[str]) -> None:
    """Refuse arguments that would override what agentjet depends on.

    :raises ConfigError: names the argument.
    """
    for argument in arguments:
        flag = re.split(r"[=.]", argument, maxsplit=1)[0].replace("_", "-")
        # Long flags can be abbreviated.
        begins = len(flag) > 2 and any(one.startswith(flag) for one in denied)
        if flag in denied or (flag.startswith("--") and begins):
            raise ConfigError(
                f"servers.{engine}.arguments must not contain {argument!r}: agentjet sets or "
                "excludes this argument",
                param=f"servers.{engine}.arguments",
            )


def server_environment(python_path: Path) -> dict[str, str]:
    """Return the environment of a server: this one without agentjet's variables, and offline.

    :param python_path: directory of agentjet's modules for this kind of server.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AJET_", "PYTHON"))}
    return kept | {
        "PYTHONPATH": f"{python_path}{os.pathsep}{SHARED_IN_SERVER}",
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
    }


def has_gpu() -> bool:
    """Return whether there is a GPU of NVIDIA or AMD."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/kfd").exists()


def gpus_of(replica: int, replicas: int, each: int) -> str:
    """Return ``CUDA_VISIBLE_DEVICES`` of one of several servers: its share of the visible GPUs.

    :raises ConfigError: there are too few GPUs.
    """
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = given.split(",") if given else [str(n) for n in range(each * replicas)]
    mine = gpus[replica * each : (replica + 1) * each]
    if len(mine) < each:
        raise ConfigError(
            f"{replicas} replicas with {each} GPUs each need {each * replicas} GPUs, but "
            f"CUDA_VISIBLE_DEVICES lists {len(gpus)}",
            param="engine.settings.replicas",
        )
    return ",".join(mine)


def dtype_of(model: ModelConfig) -> str:
    """Return the dtype for a server: for ``auto`` that of the files, not the server's default."""
    if model.dtype != "auto":
        return model.dtype
    config = model_config(model)
    return str(config.get("dtype") or config.get("torch_dtype") or "auto")


def model_config(model: ModelConfig) -> dict[str, Any]:
    """Return the ``config.json`` of a model, or the part for its language model."""
    config = read_model_config(Path(model.path))
    part: dict[str, Any] = config.get("text_config") or config
    return part
