"""The trainer under a real server, with the engine ``torch`` in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server import conftest as server_conftest
from tests.server.conftest import ServerFactory
from tests.server.real_trainer import kill_in_a_step, servers_with

model_dir = server_conftest.model_dir


@pytest.fixture
def servers(model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServerFactory:
    # Each trainer has a Ray of its own, which ends with it.
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return servers_with("verl", model_dir, tmp_path, monkeypatch)


@pytest.mark.timeout(900)
async def test_a_trainer_that_is_killed_in_a_step_is_replaced_and_goes_on_at_its_checkpoint(
    servers: ServerFactory,
) -> None:
    await kill_in_a_step(servers, "verl")
