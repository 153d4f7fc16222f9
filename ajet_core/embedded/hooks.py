"""The components that come with the core, registered as any plugin's are. Light: imports none of them."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.plugin.components import LoggerSpec, MergerSpec, StoreSpec
from ajet_core.plugin.spec import hookimpl


@hookimpl
def ajet_register_stores() -> Sequence[StoreSpec]:
    """The store ``sqlite``."""
    return (
        StoreSpec(
            name="sqlite",
            target="ajet_core.embedded.sqlite_store:SqliteStore",
            settings="ajet_core.embedded.settings:SqliteStoreSettings",
            summary="One SQLite file in the run directory, written in groups",
        ),
    )


@hookimpl
def ajet_register_mergers() -> Sequence[MergerSpec]:
    """The merger ``linear``."""
    return (
        MergerSpec(
            name="linear",
            target="ajet_core.embedded.linear_merger:LinearMerger",
            summary="Exact: calls that extend each other become one sequence",
        ),
    )


@hookimpl
def ajet_register_loggers() -> Sequence[LoggerSpec]:
    """The logger ``jsonl``."""
    return (
        LoggerSpec(
            name="jsonl",
            target="ajet_core.embedded.jsonl_logger:JsonlLogger",
            settings="ajet_core.embedded.settings:JsonlLoggerSettings",
            summary="One JSON line a step in metrics.jsonl",
        ),
    )
