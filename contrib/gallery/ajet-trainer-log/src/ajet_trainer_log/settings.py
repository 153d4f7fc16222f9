"""Settings, in a light module: the server imports it to check them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ajet_core.interfaces import ComponentSettings


class LogTrainerSettings(ComponentSettings):
    """Settings of the trainer ``log``.

    :param format: of the files; ``parquet`` needs ``pip install "ajet-trainer-log[parquet]"``.
    :param directory: name of the directory below the run directory that has the files.
    """

    format: Literal["jsonl", "parquet"] = "jsonl"
    directory: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")] = "batches"
