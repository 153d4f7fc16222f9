"""Settings of this store, free of heavy imports: the server reads them first."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ajet_core.interfaces import ComponentSettings

__all__ = ["PostgresStoreSettings"]

Schema = Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]{0,62}$")]
Seconds = Annotated[int, Field(ge=1)]


class PostgresStoreSettings(ComponentSettings):
    """Settings of the store ``postgres``.

    :param dsn: how to connect: a connection string or URL of libpq. What it lacks comes from the
        environment of libpq (``PGHOST``, ``PGPASSWORD`` and so on, ``~/.pgpass``). Several hosts
        are tried in turn, and the one that accepts writes is used.
    :param schema_name: the schema of the run. By default the store makes up a name and keeps it in
        ``postgres.json`` in the run directory. With a name of your own, the run does not depend on
        that file.
    :param connect_seconds: how long an attempt to connect to a host may take.
    :param statement_seconds: how long a statement may take before the store counts as unavailable.
    """

    dsn: str = Field(default="", repr=False)
    schema_name: Schema | None = None
    connect_seconds: Seconds = 5
    statement_seconds: Seconds = 60
