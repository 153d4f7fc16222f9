"""The syntax of modules, parsed once for all tests that read it, and only when one does."""

from __future__ import annotations

import ast
import functools
from pathlib import Path


@functools.cache
def syntax(path: Path) -> ast.Module:
    """The syntax of a module; nothing may change it."""
    return ast.parse(path.read_text(encoding="utf-8"))
