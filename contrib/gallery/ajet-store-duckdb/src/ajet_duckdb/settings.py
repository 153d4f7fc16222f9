"""Settings, in a light module: the server imports it to check them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ajet_core.interfaces import ComponentSettings

FILE_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"


class DuckdbStoreSettings(ComponentSettings):
    """Settings of the store ``duckdb``.

    :param file: name of the database in the run directory.
    :param checkpoint_mib: size of the write-ahead log at which it is merged into the database.
    :param threads: threads with which DuckDB runs a query.
    :param memory_mib: memory that DuckDB may use.
    """

    file: Annotated[str, Field(pattern=rf"^{FILE_NAME}$")] = "samples.duckdb"
    checkpoint_mib: Annotated[float, Field(gt=0)] = 64
    threads: Annotated[int, Field(ge=1)] = 1
    memory_mib: Annotated[int, Field(ge=64)] = 1024
