"""Programs of the host that sandboxes need."""

from __future__ import annotations

import shutil

from ajet_core.errors import SandboxError
from ajet_core.interfaces import BoxLimits

_PACKAGES = {"bwrap": "bubblewrap", "setpriv": "util-linux", "prlimit": "util-linux"}


def missing_tools(*names: str) -> str:
    """Return what to install, "" if all programs are there."""
    missing = [name for name in names if not shutil.which(name)]
    if not missing:
        return ""
    packages = " ".join(sorted({_PACKAGES[name] for name in missing}))
    return f"{' and '.join(missing)} must be installed: apt-get install {packages}"


def tool(name: str) -> str:
    """Return the path of a program of the host, which the environment of a box may not name.

    :raises SandboxError: it is not installed.
    """
    path = shutil.which(name)
    if path is None:
        raise SandboxError(missing_tools(name))
    return path


def limited(limits: BoxLimits, *, processes: bool = True) -> list[str]:
    """Return the command that sets limits, to be put before that of a program.

    :param processes: whether the number of processes is limited, which counts those of a user.
    """
    values = {
        "as": limits.memory_bytes,
        "nproc": limits.processes if processes else None,
        "fsize": limits.file_bytes,
        "cpu": limits.cpu_seconds,
        "core": 0,
    }
    chosen = [f"--{name}={value}" for name, value in values.items() if value is not None]
    return [tool("prlimit"), *chosen, "--"]
