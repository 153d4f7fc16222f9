"""The argument RUN of commands that read the records of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ajet_cli.servers import INNER
from ajet_server.store.chosen_store import NOTE


class RunPath(click.Path):
    """A run directory, the directory of a `LocalServer` or the file of a store."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path; of the directory of a `LocalServer`, the run directory in it."""
        path = super().convert(value, param, ctx)
        assert isinstance(path, Path)
        inner = path / INNER
        return inner if (inner / NOTE).is_file() and not (path / NOTE).exists() else path
