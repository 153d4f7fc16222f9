"""What the plugin registers. This module is light: it names what it does not import."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.plugin import StoreSpec, hookimpl


@hookimpl
def ajet_register_stores() -> Sequence[StoreSpec]:
    """Register the store ``duckdb``."""
    return [
        StoreSpec(
            name="duckdb",
            target="ajet_duckdb.store:DuckdbStore",
            settings="ajet_duckdb.settings:DuckdbStoreSettings",
            summary="a DuckDB database in the run directory",
        )
    ]
