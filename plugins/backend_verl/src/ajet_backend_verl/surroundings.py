"""What has to be in the environment before verl is imported, here and in the workers on Ray."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import torch

THREADS = "OMP_NUM_THREADS"
ADDRESS_VARIABLE = "RAY_ADDRESS"


def cluster_address() -> str:
    """The Ray cluster that the operator named; "" to start one."""
    address = os.environ.get(ADDRESS_VARIABLE, "")
    return "" if address == "local" else address


def variables(
    device: torch.device, threads: int | None, meeting: Path | None = None
) -> dict[str, str]:
    """Environment variables of the workers.

    :param threads: as `VerlTrainerSettings.threads`.
    :param meeting: a file by which workers find each other, where all are on this machine; otherwise they ask the first
        one, on a port that others can reach.
    """
    found = {
        "TOKENIZERS_PARALLELISM": "false",
        # Models are local directories.
        **{name: os.environ.get(name, "1") for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")},
        "VERL_LOGGING_LEVEL": os.environ.get("VERL_LOGGING_LEVEL", "WARNING"),
        # Plugins for verl of other distributions are not ours to load.
        "VERL_USE_EXTERNAL_PLUGINS": "none",
    }
    if threads is not None or device.type == "cpu":
        found[THREADS] = str(threads or 1)
    if device.type == "cpu":
        found["VERL_PLATFORM"] = "cpu"
        found["VERL_USE_EXTERNAL_MODULES"] = "ajet_backend_verl.cpu_platform"
        # verl's FSDP engine is registered for accelerators, and needs none.
        found["VERL_ENGINE_DEVICE"] = "cuda"
    if meeting is not None:
        found["DIST_INIT_METHOD"] = f"file://{meeting}"
        found["GLOO_SOCKET_IFNAME"] = "lo"
    return found


def prepare(device: torch.device) -> None:
    """Make this process ready to import verl and Ray, which read most of it only then."""
    os.environ.update(variables(device, None))
    # Nobody is told that Ray runs here.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # As Ray will do by default some day, and warns of until then.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if not cluster_address():
        # Or Ray would listen on more than the loopback address that it is given.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        # Its ports are open to all users of this machine, who could run code in it.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
