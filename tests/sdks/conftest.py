"""A server on a real socket whose model says what it is told to, asked by the official SDKs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from openai import AsyncOpenAI
from tokenizers import Tokenizer

from ajet_core.timeline import Call
from tests.server.conftest import Running, model_dir, server, servers

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

__all__ = ["model_dir", "server", "servers"]

SPOKEN = "I looked around."
CALLED = '<tool_call>\n{"name": "move", "arguments": {"direction": "up", "steps": 2}}\n</tool_call>'
ENDED = "<|im_end|>"
SCHEMA = {
    "type": "object",
    "properties": {"direction": {"type": "string"}, "steps": {"type": "integer"}},
}


@dataclass
class Agent:
    """An open episode of a server, and clients with its key."""

    server: Running
    grant: dict[str, Any]

    @property
    def openai(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=self.grant["base_url"], api_key=self.grant["api_key"])

    @property
    def anthropic(self) -> AsyncAnthropic:
        # Not where OpenAI's SDK is tested in an older version.
        from anthropic import AsyncAnthropic

        base = self.grant["base_url"].removesuffix("/v1")
        return AsyncAnthropic(base_url=base, api_key=self.grant["api_key"])

    async def calls(self) -> list[Call]:
        """What is recorded."""
        episode_id = self.grant["episode_id"]
        found = await self.server.service.store.calls([episode_id])
        return sorted(found[episode_id], key=lambda call: call.index)


@pytest.fixture
def model_says(server: Running, model_dir: Path):
    """Starts a run whose model answers with a text."""

    async def start(text: str, engine_name: str = "scripted", **engine: Any) -> Agent:
        tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        settings = {"reply_ids": ids, "chunk_tokens": 1, **engine}
        await server.roll(engine=settings, engine_name=engine_name)
        return Agent(server, await server.claim())

    return start


@pytest.fixture
async def agent(model_says) -> AsyncIterator[Agent]:
    """One whose model speaks and calls two tools."""
    return await model_says(f"{SPOKEN}{CALLED}{CALLED}{ENDED}")
