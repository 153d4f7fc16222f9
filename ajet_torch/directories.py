"""Directories that are written atomically."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ajet_core.files import sync

__all__ = ["whole_directory"]


@contextmanager
def whole_directory(target: Path) -> Iterator[Path]:
    """Yield a directory to write into, which becomes `target` if the block ends without an error.

    Files are flushed to disk before they appear under `target`; an existing directory is replaced.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.partial")
    replaced = target.with_name(f".{target.name}.replaced")
    if replaced.exists() and not target.exists():
        # A process died between the two renames below.
        replaced.rename(target)
    for leftover in (aside, replaced):
        shutil.rmtree(leftover, ignore_errors=True)
    aside.mkdir()
    try:
        yield aside
        for path in (*sorted(aside.rglob("*")), aside):
            sync(path)
        if target.exists():
            target.rename(replaced)
        aside.rename(target)
        sync(target.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        shutil.rmtree(replaced, ignore_errors=True)
