"""What tests ask of a running server, and wait for."""

from __future__ import annotations

import asyncio
from typing import Any

from ajet_core.protocol import ServerState
from ajet_server.run.run_loop import RunLoop
from ajet_testing.servers import CLIENT, CONTROL, Running


def loop_of(server: Running) -> RunLoop:
    loop = server.service.coordinator.loop
    assert loop is not None
    return loop


def events(server: Running, type_: str) -> list[dict[str, Any]]:
    found = [owned.event for owned in server.service.events._events]
    return [event.data for event in found if event.type == type_]


async def until_state(server: Running, state: ServerState) -> None:
    await server.service.board.wait_until(lambda: server.service.board.state is state)


async def abort(server: Running, grant: dict[str, Any], **body: Any) -> dict[str, Any]:
    answer = await server.http.post(
        f"/v1/episodes/{grant['episode_id']}/abort", headers=CLIENT, json=body
    )
    assert answer.status_code == 200, answer.text
    status: dict[str, Any] = answer.json()
    return status


async def finish_batch(server: Running) -> None:
    """The episodes of a batch, whatever becomes of it."""
    await asyncio.gather(*(server.episode(task, r) for task in "ab" for r in (0.0, 1.0)))


async def status(server: Running) -> dict[str, Any]:
    answer = await server.http.get("/v1/status", headers=CONTROL)
    found: dict[str, Any] = answer.json()
    return found
