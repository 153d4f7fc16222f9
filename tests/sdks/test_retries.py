"""What an SDK sends again is answered by the call that was made."""

from __future__ import annotations

import pytest

from tests.sdks.conftest import Agent

RETRY = {"x-stainless-retry-count": "1"}
ASKED = [{"role": "user", "content": "x"}]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_call_that_is_sent_again_is_recorded_once(agent: Agent, path: str) -> None:
    headers = {"x-api-key": agent.grant["api_key"]}
    body = {"messages": ASKED, "max_tokens": 20}

    async def ask(**more: str) -> str:
        answer = await agent.server.http.post(path, headers={**headers, **more}, json=body)
        answer.raise_for_status()
        name: str = answer.json()["id"]
        return name

    first = await ask()
    assert await ask(**RETRY) == first
    assert await ask(**{"idempotency-key": "a"}) != first
    # The same question, asked once more.
    assert await ask() != first
    assert len(await agent.calls()) == 3
