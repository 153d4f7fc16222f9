"""Plugin hooks that register this store."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.plugin import StoreSpec, hookimpl


@hookimpl
def ajet_register_stores() -> Sequence[StoreSpec]:
    """Register the store ``postgres``."""
    return (
        StoreSpec(
            name="postgres",
            target="ajet_store_postgres.store:PostgresStore",
            settings="ajet_store_postgres.settings:PostgresStoreSettings",
            summary="PostgreSQL: the records of a run in a schema of a database",
        ),
    )
