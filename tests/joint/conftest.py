"""Real servers without workers, and a faulty network between them and a client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.joint import Network, World, make_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Two servers that run and know each other."""
    network = Network()
    made = make_world(network, tmp_path)
    for server in made.servers.values():
        await server.start()
    yield made
    for server in made.servers.values():
        await server.stop()
