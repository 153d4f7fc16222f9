"""A server whose engine stops in the middle of an answer until the test lets it go on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

from tokenizers import Tokenizer

from ajet_core.interfaces import ServingEngine
from ajet_testing.servers import Running
from tests.server.dialects.scripted import ScriptedEngine


def hold_engine(server: Running, text: str, at: int) -> ScriptedEngine:
    """Let a rolling server answer a text, one token at a time, and stop after so many tokens."""
    tokenizer = Tokenizer.from_file(str(server.model_dir / "tokenizer.json"))
    ids = tokenizer.encode(f"{text}<|im_end|>", add_special_tokens=False).ids
    engine = ScriptedEngine([ids], hold=asyncio.Event(), hold_at=at)
    loop = server.service.coordinator.loop
    assert loop is not None
    loop.supervisor.gate.open(cast("ServingEngine", engine))
    return engine


@contextlib.asynccontextmanager
async def half_answered(
    server: Running, grant: dict[str, Any], text: str, at: int, **request: Any
) -> AsyncIterator[tuple[ScriptedEngine, asyncio.Task[Any]]]:
    """Make a call that stops after `at` tokens; it goes on when the block ends, at the latest."""
    engine = hold_engine(server, text, at)
    calling = asyncio.create_task(server.chat(grant, **request))
    assert engine.hold is not None
    try:
        await engine.held.wait()
        yield engine, calling
    finally:
        engine.hold.set()
        await calling
