"""Where a study lies."""

from __future__ import annotations

from pathlib import Path


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
