"""Settings of the embedded components; light, as the server reads them before anything is loaded."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ajet_core.interfaces import ComponentSettings

FileName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_][\w.-]*$")]


class SqliteStoreSettings(ComponentSettings):
    """Settings of the store ``sqlite``.

    :param file: name of the database in the run directory.
    :param synchronous: ``FULL`` syncs the disk before a write is acknowledged, so that it survives a power
        cut. ``NORMAL`` syncs at checkpoints only: it survives the death of any process, but a power
        cut may take the last writes.
    :param max_mib: most mebibytes the database file may grow to; None leaves it to the disk. A database
        that is larger already keeps its size.
    :param busy_timeout_ms: how long to wait for another program that has the database locked, such as a
        ``sqlite3`` shell, before a write fails.
    """

    file: FileName = "samples.sqlite3"
    synchronous: Literal["FULL", "NORMAL"] = "FULL"
    max_mib: Annotated[int, Field(ge=1)] | None = None
    busy_timeout_ms: Annotated[int, Field(ge=0)] = 5000


class JsonlLoggerSettings(ComponentSettings):
    """Settings of the logger ``jsonl``.

    :param file: name of the file in the run directory, for the steps.
    :param evaluations_file: the same, for evaluations.
    """

    file: FileName = "metrics.jsonl"
    evaluations_file: FileName = "evaluations.jsonl"
