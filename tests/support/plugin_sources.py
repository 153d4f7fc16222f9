"""Import plugins from their sources, whether they are installed or not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder


@contextmanager
def plugin_sources() -> Iterator[None]:
    """Forget what was imported meanwhile from plugins that are not installed, and the path.

    Other tests would take them for installed.
    """
    before, path = set(sys.modules), [*sys.path]
    try:
        yield
    finally:
        sys.path[:] = path
        for name in sys.modules.keys() - before:
            package = name.partition(".")[0]
            if package.startswith("ajet_") and PathFinder.find_spec(package, path) is None:
                del sys.modules[name]
