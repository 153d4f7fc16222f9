"""What the limits of a program are in a sandbox, in words."""

from __future__ import annotations

from ajet_core.interfaces import BoxLimits, Sandbox

_UNITS = ("", "K", "M", "G", "T")
_WORDS = {
    "memory_bytes": ("memory", "each process"),
    "processes": ("processes", ""),
    "file_bytes": ("file", "each file"),
    "cpu_seconds": ("cpu", "each process"),
    "output_bytes": ("output", "each of stdout and stderr"),
}


def limits_in_force(limits: BoxLimits, sandbox: Sandbox) -> str:
    """Return each limit of a program, and whether it is one of each process or of the sandbox."""
    return "; ".join(_words(field, getattr(limits, field), sandbox) for field in _WORDS)


def _words(field: str, value: int | None, sandbox: Sandbox) -> str:
    name, each = _WORDS[field]
    of = sandbox.limits_of.get(field)
    if value is None or of == "nothing":
        return f"{name}: unlimited"
    if of == "sandbox":
        each = "the whole sandbox"
    text = _size(value) if field.endswith("_bytes") else str(value)
    if field == "cpu_seconds":
        text += " s"
    return f"{name}: {text} for {each}" if each else f"{name}: {text}"


def _size(value: int) -> str:
    """Return a number of bytes as ``--limit`` accepts it."""
    power = 0
    while value and value % 1024 == 0 and power + 1 < len(_UNITS):
        value //= 1024
        power += 1
    return f"{value}{_UNITS[power]}"
