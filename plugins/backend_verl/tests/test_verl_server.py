"""The trainer under a real server, with the engine ``torch`` in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet_testing.real_trainer import kill_in_a_step, servers_with
from ajet_testing.servers import ServerFactory


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServerFactory:
    # Each trainer has a Ray of its own, which ends with it.
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return servers_with("verl", tmp_path)


@pytest.mark.nightly
@pytest.mark.timeout(900)
async def test_a_trainer_that_is_killed_in_a_step_is_replaced_and_goes_on_at_its_checkpoint(
    servers: ServerFactory,
) -> None:
    await kill_in_a_step(servers, "verl")
