"""With which software and on which machine a run was served: for reports, read after the run."""

from __future__ import annotations

import json
import logging
import os
import platform
import re
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import distributions
from pathlib import Path

import psutil
from pydantic import TypeAdapter, ValidationError

from ajet_core import __version__
from ajet_installation.environment import find_environments
from ajet_installation.settings import Settings
from ajet_server.observe.system_metrics import gpus

FILE_NAME = "provenance.jsonl"
_log = logging.getLogger("ajet.server")

# What a result can depend on, besides agentjet and its plugins.
_NOTED = re.compile(
    r"agentjet.*|torch|transformers|tokenizers|numpy|vllm|sglang|trl|verl|peft|accelerate|deepspeed"
    r"|flash[-_]attn|flashinfer[-_]python|triton|xgrammar|nvidia[-_]nccl.*|nvidia[-_]cudnn.*"
)
_MOST_BYTES = 2**20
_MOST_LINES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Software and machine of a server process.

    :param at: when it was started, in Unix seconds.
    :param memory_bytes: of the machine.
    :param gpus: names of the GPUs that NVML lists.
    :param packages: versions of agentjet, its plugins and the main libraries.
    :param environments: the same of each environment that `ajet env` has created, by its name.
    """

    at: float
    agentjet: str
    python: str
    platform: str
    cpus: int
    memory_bytes: int
    gpus: list[str] = field(default_factory=list)
    packages: dict[str, str] = field(default_factory=dict)
    environments: dict[str, dict[str, str]] = field(default_factory=dict)


_provenance = TypeAdapter(Provenance)


def present(settings: Settings, at: float) -> Provenance:
    """Return what this process runs with."""
    installed = ((one.name, one.version) for one in distributions())
    return Provenance(
        at=at,
        agentjet=__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        cpus=os.cpu_count() or 0,
        memory_bytes=psutil.virtual_memory().total,
        gpus=[gpu.name for gpu in gpus()],
        packages=_noted(installed),
        environments={
            name: _noted(environment.installed().items())
            for name, environment in sorted(find_environments(settings).items())
        },
    )


def read_provenance(run_dir: Path) -> list[Provenance]:
    """Return the last 100 provenances of a run in order; lines that cannot be read are left out."""
    noted = []
    for line in _last_lines(run_dir / FILE_NAME):
        try:
            noted.append(_provenance.validate_json(line))
        except ValidationError:
            continue
    return noted


def note_provenance(settings: Settings) -> threading.Thread:
    """Append the provenance to the run directory if it is new, on a thread of its own.

    The server does not wait for it, because drivers of GPUs may hang.
    """
    thread = threading.Thread(target=_note, args=(settings,), name="provenance", daemon=True)
    thread.start()
    return thread


def _note(settings: Settings) -> None:
    run_dir = settings.server.run_dir
    try:
        now = present(settings, time.time())
        before = read_provenance(run_dir)
        if before and replace(before[-1], at=now.at) == now:
            return
        with (run_dir / FILE_NAME).open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                # A process may have ended while it wrote a line.
                file.write(b"" if file.read(1) == b"\n" else b"\n")
            file.write(json.dumps(asdict(now)).encode() + b"\n")
    # What an operating system, a driver or a damaged package can raise is not known.
    except Exception as error:  # noqa: BLE001 - see above
        _log.warning(
            "%s does not say with which software this run is served: %s: %s",
            run_dir / FILE_NAME,
            type(error).__name__,
            error,
        )


def _noted(installed: Iterable[tuple[str, str]]) -> dict[str, str]:
    return dict(sorted((name, version) for name, version in installed if _NOTED.fullmatch(name)))


def _last_lines(path: Path) -> list[bytes]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _MOST_BYTES))
            return [line for line in file.read().splitlines() if line][-_MOST_LINES:]
    except OSError:
        return []
