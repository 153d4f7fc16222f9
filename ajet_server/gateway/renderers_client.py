"""Leave out the HTTP client of `renderers`, which the server does not use.

The package imports it, and with it the SDK of OpenAI: three quarters of the package's import time
and 34 MB of memory for each server process, measured with renderers 0.1.12 and openai 3.54.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

_PACKAGE, _CLIENT = "renderers", "renderers.client"
_ERRORS = ("MalformedGenerateResponseError", "OverlongPromptError")
"""What the package itself takes of the client."""


class _UnusedClient(ModuleType):
    """Stands for the client until something else of it is used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        package = sys.modules.get(_PACKAGE)
        if name in _ERRORS and package is not None and not hasattr(package, name):
            # Importing a submodule that is there already does not set the package's attribute.
            package.client = self  # type: ignore[attr-defined]
            setattr(self, name, type(name, (Exception,), {"__module__": _CLIENT}))
            return self.__dict__[name]
        if sys.modules.get(_CLIENT) is self:
            del sys.modules[_CLIENT]
        real = importlib.import_module(_CLIENT)
        for error in _ERRORS:
            setattr(sys.modules[_PACKAGE], error, getattr(real, error))
        return getattr(real, name)


def leave_out_client() -> None:
    """Import `renderers` without its client from now on, unless it has been imported."""
    if _PACKAGE not in sys.modules:
        sys.modules.setdefault(_CLIENT, _UnusedClient(_CLIENT))
