"""Settings of the embedded components, free of heavy imports: the server reads them first."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ajet_core.interfaces import ComponentSettings
from ajet_server.embedded.trie import MergePolicy

__all__ = ["FileName", "JsonlLoggerSettings", "SqliteStoreSettings", "TrieMergerSettings"]

FileName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_][\w.-]*$")]


class SqliteStoreSettings(ComponentSettings):
    """Settings of the store ``sqlite``.

    :param file: name of the database in the run directory.
    :param synchronous: ``FULL`` syncs the disk before a write is acknowledged, so that the write
        survives a power cut. ``NORMAL`` syncs at checkpoints only: writes survive the death of any
        process, but a power cut may lose the last ones.
    :param max_mib: the maximum size of the database file in MiB; None sets no limit. A database
        that is larger already keeps its size.
    :param busy_timeout_ms: how long a write waits while another program, such as a ``sqlite3``
        shell, has the database locked, before it fails.
    """

    file: FileName = "samples.sqlite3"
    synchronous: Literal["FULL", "NORMAL"] = "FULL"
    max_mib: Annotated[int, Field(ge=1)] | None = None
    busy_timeout_ms: Annotated[int, Field(ge=0)] = 5000


class TrieMergerSettings(ComponentSettings):
    """Settings of the merger ``trie``.

    :param policy: when a call continues in an existing context: ``exact``, if the tokens are the
        same; ``text``, if the messages have the same text; ``ignore_tools``, if they have,
        whatever tools are offered. The last two train calls in contexts they were not sampled in;
        metrics say how many tokens they altered.
    """

    policy: MergePolicy = "exact"


class JsonlLoggerSettings(ComponentSettings):
    """Settings of the logger ``jsonl``.

    :param file: name of the file for steps, in the run directory.
    :param evaluations_file: name of the file for evaluations, in the run directory.
    :param findings_file: name of the file for findings, in the run directory.
    :param system_file: name of the file for measurements of the machine, in the run directory.
    """

    file: FileName = "metrics.jsonl"
    evaluations_file: FileName = "evaluations.jsonl"
    findings_file: FileName = "findings.jsonl"
    system_file: FileName = "system.jsonl"
