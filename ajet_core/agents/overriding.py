"""Methods of a framework's classes that do something besides, for adapters of frameworks that have no hook for it."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

_MARK = "__ajet_overridden__"
_lock = threading.Lock()


def override_method(kind: type, name: str, make: Callable[[Callable[..., Any]], Any]) -> None:
    """Let a class that defines a method have what `make` makes of it; a repeat changes nothing.

    What is made has to do what the method did, and outside of episodes nothing else.
    """
    with _lock:
        original = vars(kind).get(name)
        if original is None or hasattr(original, _MARK):
            return
        wrapper = functools.wraps(original)(make(original))
        setattr(wrapper, _MARK, True)
        setattr(kind, name, wrapper)
