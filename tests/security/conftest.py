"""Servers under attack, and tokens to attack them with."""

from __future__ import annotations

from typing import Any

import httpx

from tests.server.conftest import CONTROL, Running
from tests.server.conftest import model_dir as model_dir  # noqa: PLC0414 - a fixture
from tests.server.conftest import server as server  # noqa: PLC0414
from tests.server.conftest import servers as servers  # noqa: PLC0414

Headers = dict[str, str]


async def new_token(server: Running, name: str, **fields: Any) -> tuple[str, Headers]:
    """Make a token; its id, and the header with its secret."""
    answer = await server.http.post("/v1/tokens", headers=CONTROL, json={"name": name, **fields})
    assert answer.status_code == 200, answer.text
    grant = answer.json()
    return grant["info"]["token_id"], bearer(grant["token"])


async def revoke(server: Running, token_id: str) -> None:
    """Revoke a token."""
    answer = await server.http.delete(f"/v1/tokens/{token_id}", headers=CONTROL)
    assert answer.status_code == 200, answer.text


async def claim_as(
    server: Running, headers: Headers, task: str = "a", **changes: Any
) -> httpx.Response:
    """Claim an episode with a token."""
    body = {"task_id": task, "wait_seconds": 30.0, **changes}
    return await server.http.post("/v1/episodes", headers=headers, json=body)


def bearer(secret: str) -> Headers:
    """The header with a secret."""
    return {"authorization": f"Bearer {secret}"}
