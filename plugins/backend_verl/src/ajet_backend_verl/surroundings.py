"""Environment variables that must be set before importing verl, here and in workers on Ray."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import torch

THREADS = "OMP_NUM_THREADS"
ADDRESS_VARIABLE = "RAY_ADDRESS"


def cluster_address() -> str:
    """Return the Ray cluster that the operator named; "" to start one."""
    address = os.environ.get(ADDRESS_VARIABLE, "")
    return "" if address == "local" else address


def variables(
    device: torch.device, threads: int | None, meeting: Path | None = None
) -> dict[str, str]:
    """Return the environment variables of the workers.

    :param threads: as `VerlTrainerSettings.threads`.
    :param meeting: a file for workers to find each other, if all are on this machine; otherwise
        they contact the first worker on a port that others can reach.
    """
    environment = {
        "TOKENIZERS_PARALLELISM": "false",
        # Models are local directories.
        **{name: os.environ.get(name, "1") for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")},
        "VERL_LOGGING_LEVEL": os.environ.get("VERL_LOGGING_LEVEL", "WARNING"),
        # Do not load other distributions' plugins for verl.
        "VERL_USE_EXTERNAL_PLUGINS": "none",
    }
    if threads is not None or device.type == "cpu":
        environment[THREADS] = str(threads or 1)
    if device.type == "cpu":
        environment["VERL_PLATFORM"] = "cpu"
        environment["VERL_USE_EXTERNAL_MODULES"] = "ajet_backend_verl.cpu_platform"
        # verl registers its FSDP engine only for accelerators, but the engine does not need one.
        environment["VERL_ENGINE_DEVICE"] = "cuda"
    if meeting is not None:
        environment["DIST_INIT_METHOD"] = f"file://{meeting}"
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    return environment


def prepare(device: torch.device) -> None:
    """Prepare this process to import verl and Ray, which read most variables only on import."""
    os.environ.update(variables(device, None))
    # Send no usage statistics of Ray.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray's future default; without it Ray prints a warning.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if not cluster_address():
        # Otherwise Ray would listen on more than the given loopback address.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        # Ray's ports are open to all users of this machine, who could otherwise run code in it.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
