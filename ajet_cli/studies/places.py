"""Where a study lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


class StudyDirectory(click.Path):
    """The directory of a study that was started; its study file is refused with its directory."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        if Path(value).is_file() and Path(value).suffix in (".toml", ".md"):
            directory = source_and_directory(Path(value), None)[1]
            self.fail(f"{str(value)!r} is a file. Give the directory of its study: {directory}")
        return super().convert(value, param, ctx)


def source_and_directory(study: Path, directory: Path | None) -> tuple[Path, Path]:
    """Return the study file, and the directory of its state.

    :param study: a study file, or the directory of a study that was started.
    :param directory: chosen by the user; by default it is named after the file.
    """
    if (study.parent / "ledger.sqlite").exists():
        # The study file inside a study's directory.
        source, where = study, study.parent
    elif study.is_dir():
        source, where = study / "study.toml", study
        source = source if source.exists() else study / "study.json"
    else:
        source, where = study, study.with_suffix(".study")
    return source, directory or where
