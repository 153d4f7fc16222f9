"""Names of modules, which have none of their own: their place in the program, or their class."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import dspy

_UNNAMED = "StringSignature"
"""The name of signatures that are written as strings."""


def current_module() -> str | None:
    """Return the name of the module that is running in the current context, or None.

    This is the path of attributes from the outermost module of the program to the first module
    that is one of DSPy's: ``planner``, or ``team.planner``. If the outermost module is one of
    DSPy's, it is the name of its signature; for a signature without a name, that of the class.
    """
    modules = dspy.settings.caller_modules
    if not modules:
        return None
    path = []
    for outer, inner in pairwise(modules):
        place = None if _is_of_dspy(outer) else _place(outer, inner)
        if place is None:
            break
        path.append(place)
    return ".".join(path) or _own_name(modules[0])


def _is_of_dspy(module: Any) -> bool:
    return type(module).__module__.partition(".")[0] == "dspy"


def _place(outer: Any, inner: Any) -> str | None:
    """Return the path of attributes from a module to one in it, or None if it is elsewhere."""
    for path, module in outer.named_sub_modules():
        if module is inner:
            return str(path).partition(".")[2] or None
    return None


def _own_name(module: Any) -> str:
    signature = getattr(module, "signature", None)
    name = getattr(signature, "__name__", _UNNAMED)
    return type(module).__name__ if name == _UNNAMED else str(name)
