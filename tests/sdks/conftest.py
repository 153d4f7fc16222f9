"""A server on a real socket whose model says what it is told to, asked by the official SDKs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from ajet_testing.servers import Running
from tests.support.sdks import CALLED, ENDED, SPOKEN, Agent


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
