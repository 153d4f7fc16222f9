"""Overriding methods of a framework's classes, for adapters of frameworks without hooks."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from ajet_core.errors import ConfigError

_MARK = "__ajet_overridden__"
_lock = threading.Lock()


def override_method(kind: type, name: str, make: Callable[[Callable[..., Any]], Any]) -> None:
    """Replace a method that a class defines by what `make` returns for it.

    Repeated calls and inherited methods change nothing. The replacement must do what the method
    did, and nothing else outside of episodes.

    :raises ConfigError: the class has no such method: the adapter is for another version of the
        framework.
    """
    with _lock:
        if not hasattr(kind, name):
            raise ConfigError(
                f"{kind.__module__}.{kind.__qualname__} has no {name}: the adapter does not "
                "support this version of the framework; install a supported version"
            )
        original = vars(kind).get(name)
        if original is None or hasattr(original, _MARK):
            return
        wrapper = functools.wraps(original)(make(original))
        setattr(wrapper, _MARK, True)
        setattr(kind, name, wrapper)


def derived_classes(kind: type[Any]) -> Iterator[type[Any]]:
    """Yield all current subclasses of a class, at any depth."""
    for derived in kind.__subclasses__():
        yield derived
        yield from derived_classes(derived)
