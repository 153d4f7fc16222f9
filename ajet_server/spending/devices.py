"""The devices that a run holds, as far as the server can see them."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import Counter
from collections.abc import Mapping

from ajet_server.observe.system_metrics import gpus

_log = logging.getLogger("ajet.server")

MACHINE = "machine"
"""The kind of device of a server without a GPU: the machine as a whole."""

UNNAMED = "gpu"
"""The kind of a GPU whose name cannot be read."""

_LIMIT_SECONDS = 10.0


async def devices_of_machine(
    environ: Mapping[str, str] = os.environ, *, limit: float = _LIMIT_SECONDS
) -> dict[str, int]:
    """Return what `seen_devices` does; one `MACHINE`, with a warning, if it takes too long.

    :param limit: seconds; a driver may hang.
    """
    seen: list[dict[str, int]] = []
    # A daemon: nothing waits for a driver that hangs, not even the end of the server.
    thread = threading.Thread(
        target=lambda: seen.append(seen_devices(environ)), name="devices", daemon=True
    )
    thread.start()
    await asyncio.to_thread(thread.join, limit)
    if seen:
        return seen[0]
    _log.warning(
        "the GPUs cannot be listed%s: the run counts the hours of the machine as a whole; "
        "name its devices in costs.devices",
        f" within {limit:g} seconds" if thread.is_alive() else "",
    )
    return {MACHINE: 1}


def seen_devices(environ: Mapping[str, str]) -> dict[str, int]:
    """Return the number of GPUs by name; one `MACHINE` if there are none.

    Only NVIDIA's are seen, by NVML, and only if the package ``nvidia-ml-py`` is installed.

    :param environ: ``CUDA_VISIBLE_DEVICES`` selects those that count.
    """
    names = {(gpu.index, gpu.uuid): gpu.name or UNNAMED for gpu in gpus()}
    if (chosen := environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        names = _selected(names, chosen)
    return dict(Counter(names.values())) or {MACHINE: 1}


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
