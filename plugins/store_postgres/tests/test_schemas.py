"""The tables of SQLite and PostgreSQL, and those that docs/stores.md describes, are the same."""

from __future__ import annotations

import re
import secrets
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from ajet_store_postgres.schema import prepare
from postgres_server import PostgresServer

from ajet_server.embedded.settings import SqliteStoreSettings
from ajet_server.store.schema import connect_writer
from ajet_stores import codec

PAGE = Path(__file__).parents[3] / "docs/stores.md"
TYPES = {
    "double precision": "REAL",
    "bigint": "INTEGER",
    "integer": "INTEGER",
    "smallint": "INTEGER",
    "text": "TEXT",
    "bytea": "BLOB",
}
# SQLite keeps a text as it is, or compressed, in a column of either type.
EITHER = ("calls", "messages")
# The tables, by name: each column with its type and whether it may be NULL; and what is unique.
Columns = dict[str, dict[str, tuple[str, bool]]]
Unique = set[tuple[str, tuple[str, ...]]]


@pytest.fixture
def sqlite(tmp_path: Path) -> tuple[Columns, Unique]:
    """The schema of the store ``sqlite``."""
    connection = connect_writer(tmp_path / "samples.sqlite3", SqliteStoreSettings())
    columns: Columns = {}
    unique: Unique = set()
    for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'"):
        info = connection.execute(f"PRAGMA table_info({table})").fetchall()
        columns[table] = {
            name: (kind, not (required or key)) for _, name, kind, required, _, key in info
        }
        keys = [(key, name) for _, name, _, _, _, key in info if key]
        unique.add((table, tuple(name for _, name in sorted(keys))))
        for _, index, is_unique, *_ in connection.execute(f"PRAGMA index_list({table})"):
            if is_unique:
                unique.add((table, _names(connection, index)))
    connection.close()
    return columns, unique


def _names(connection: sqlite3.Connection, index: str) -> tuple[str, ...]:
    return tuple(row[2] for row in connection.execute(f"PRAGMA index_info({index})"))


@pytest.fixture
def postgresql(postgres: PostgresServer) -> tuple[Columns, Unique]:
    """The schema of the store ``postgres``."""
    schema = f"run_{secrets.token_hex(4)}"
    columns: Columns = {}
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f"SET search_path = {schema}")
        prepare(connection, schema, "the test")
        rows: Iterable[tuple[Any, ...]] = connection.execute(
            "SELECT table_name, column_name, data_type, is_nullable = 'YES' "
            "FROM information_schema.columns WHERE table_schema = %s",
            (schema,),
        )
        for table, name, kind, nullable in rows:
            columns.setdefault(table, {})[name] = (TYPES[kind], nullable)
        indices = connection.execute(
            "SELECT tablename, indexdef FROM pg_indexes WHERE schemaname = %s "
            "AND indexdef LIKE 'CREATE UNIQUE%%'",
            (schema,),
        )
        unique = {
            (table, tuple(re.findall(r"\w+", text.partition("USING btree (")[2].partition(")")[0])))
            for table, text in indices
        }
    # SQLite keeps the version of the schema beside the tables, and the lock in a file.
    del columns["store"]
    return columns, {key for key in unique if key[0] != "store"}


@pytest.mark.postgres
def test_both_databases_have_the_same_tables(
    sqlite: tuple[Columns, Unique], postgresql: tuple[Columns, Unique]
) -> None:
    for columns, _ in (sqlite, postgresql):
        table, name = EITHER
        del columns[table][name]
    assert sqlite[0] == postgresql[0]


@pytest.mark.postgres
def test_both_databases_have_the_same_keys(
    sqlite: tuple[Columns, Unique], postgresql: tuple[Columns, Unique]
) -> None:
    assert sqlite[1] == postgresql[1]


@pytest.mark.skipif(not PAGE.is_file(), reason="an sdist has no docs")
def test_the_page_describes_these_tables(sqlite: tuple[Columns, Unique]) -> None:
    described = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if row := re.fullmatch(r"\| `(\w+)` \| (`\w+`(?:, `\w+`)*) \| .+ \|", line):
            columns = set()
            for name in re.findall(r"\w+", row[2]):
                constant = getattr(codec, name, name)
                columns |= set(constant.split(", "))
            described[row[1]] = columns
    tables = {table: set(columns) for table, columns in sqlite[0].items()}
    # Its key makes it have one row.
    tables["run"].remove("one")
    assert described == tables


@pytest.mark.skipif(not PAGE.is_file(), reason="an sdist has no docs")
def test_the_page_names_the_keys_and_the_bytes(sqlite: tuple[Columns, Unique]) -> None:
    columns, unique = sqlite
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    of_bytes = {
        name for kinds in columns.values() for name, (kind, _) in kinds.items() if kind == "BLOB"
    }
    (named,) = re.findall(r"((?:`\w+`(?:, | and ))+`\w+`) are bytes", page)
    assert set(re.findall(r"\w+", named.replace(" and ", " "))) == of_bytes
    for table, names in unique:
        (row,) = re.findall(rf"\| `{table}` \|[^|]*\|[^|]*\|", page)
        assert table == "run" or all(f"`{name}`" in row for name in names), row
