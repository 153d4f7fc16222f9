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
    """The merger ``trie``."""
    return (
        MergerSpec(
            name="trie",
            target="ajet_core.embedded.trie_merger:TrieMerger",
            summary="A token tree: every distinct context of an episode once",
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
