"""The platform ``cpu`` for verl, which otherwise supports only accelerators.

verl imports this module if `VERL_USE_EXTERNAL_MODULES` names it, in the trainer's process and in
every worker on Ray, and uses the platform if `VERL_PLATFORM` is ``cpu``
(`ajet_backend_verl.surroundings`).
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing, for operations that a CPU does not have."""


def _zero(*_: Any, **__: Any) -> int:
    """Return 0 bytes of device memory."""
    return 0


def _device_module() -> types.ModuleType:
    """Return `torch.cpu` with the functions of `torch.cuda` that verl uses."""
    module = types.ModuleType("torch_cpu")
    module.__dict__.update({n: getattr(torch.cpu, n) for n in dir(torch.cpu) if n[:2] != "__"})
    memory = (
        "max_memory_allocated",
        "max_memory_reserved",
        "memory_allocated",
        "memory_reserved",
    )
    actions = (
        "empty_cache",
        "ipc_collect",
        "manual_seed",
        "manual_seed_all",
        "reset_peak_memory_stats",
        "set_device",
    )
    module.__dict__.update(dict.fromkeys(memory, _zero))
    module.__dict__.update(dict.fromkeys(actions, _nothing))
    module.__dict__.update(
        get_device_name=lambda *_: "CPU",
        get_rng_state=torch.get_rng_state,
        is_available=lambda: False,
        mem_get_info=lambda *_: (0, 0),
        set_rng_state=torch.set_rng_state,
    )
    return module


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):  # type: ignore[misc]
    """The CPU as the only device; processes communicate over gloo."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _device_module()

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:  # noqa: ARG002
        """Return False: the platform is only used on request."""
        return False

    def current_device(self) -> torch.device:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:  # noqa: ARG002
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:  # noqa: ARG002
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        return "CPU"

    def ray_resource_options(self, num_gpus: float) -> dict[str, Any]:
        return {"num_cpus": num_gpus}

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def rollout_env_vars(self) -> dict[str, str]:
        return {}

    def get_collective_module(self) -> None:
        return None

    def cudart(self) -> None:
        return None
