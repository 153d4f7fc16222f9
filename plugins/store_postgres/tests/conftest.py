"""A PostgreSQL server for the tests of this store."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from postgres_server import PostgresServer, programs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that need PostgreSQL where it is not installed, but not in CI."""
    if programs() is None and not os.environ.get("CI"):
        reason = "PostgreSQL is not installed (Debian: apt-get install postgresql)"
        for item in items:
            if item.get_closest_marker("postgres"):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A running server that all tests share; none of them stops it."""
    with PostgresServer() as server:
        server.start("fsync=off")
        yield server
