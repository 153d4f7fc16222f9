"""The devices that a run holds, as far as the server can see them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping

MACHINE = "machine"
"""The kind of device of a server without a GPU: the machine as a whole."""


def seen_devices(environ: Mapping[str, str] = os.environ) -> dict[str, int]:
    """Return the number of GPUs by name; one `MACHINE` if there are none.

    Only NVIDIA's are seen, by NVML, and only if the package ``nvidia-ml-py`` is installed.

    :param environ: ``CUDA_VISIBLE_DEVICES`` selects those that count.
    """
    names = _gpus()
    if (chosen := environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        names = _selected(names, chosen)
    return dict(Counter(names.values())) or {MACHINE: 1}


def _gpus() -> dict[tuple[int, str], str]:
    """Return the names of GPUs by index and UUID."""
    try:
        import pynvml
    except ImportError:
        return {}
    try:
        pynvml.nvmlInit()
        try:
            handles = [
                pynvml.nvmlDeviceGetHandleByIndex(index)
                for index in range(pynvml.nvmlDeviceGetCount())
            ]
            return {
                (index, _text(pynvml.nvmlDeviceGetUUID(handle))): _text(
                    pynvml.nvmlDeviceGetName(handle)
                )
                for index, handle in enumerate(handles)
            }
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return {}


def _selected(names: Mapping[tuple[int, str], str], chosen: str) -> dict[tuple[int, str], str]:
    """Return the GPUs that CUDA would use: all before the first entry that names none."""
    selected: dict[tuple[int, str], str] = {}
    for entry in (part.strip() for part in chosen.split(",")):
        matches = {
            key: name
            for key, name in names.items()
            if entry == str(key[0]) or (entry.startswith("GPU-") and key[1].startswith(entry))
        }
        if not matches:
            break
        selected |= matches
    return selected


def _text(value: str | bytes) -> str:
    # Old versions of the package return bytes.
    return value.decode() if isinstance(value, bytes) else value
