"""Which versions of vLLM are taken."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest
from ajet_engine_vllm.version import check_version
from tiny_vllm import make_engine

from ajet_core.errors import EngineError
from ajet_core.interfaces import ModelServers
from ajet_core.protocol import ModelConfig


@pytest.mark.parametrize("text", ["0.31.0", "0.31.0+cpu", "0.32.1.dev3+g1234", "0.32.5"])
def test_those_that_were_tried_are_taken(text: str, caplog: pytest.LogCaptureFixture) -> None:
    check_version(text)
    assert not caplog.records


@pytest.mark.parametrize("text", ["0.33.0", "1.0", "dev"])
def test_others_are_taken_with_a_word_in_the_log(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "ajet.engine"):
        check_version(text)
    assert text in caplog.text


@pytest.mark.parametrize("text", ["0.30.9", "0.24.0", "0.30.1rc1.dev0"])
def test_older_ones_are_refused_with_what_to_do(text: str) -> None:
    with pytest.raises(EngineError, match=r"0\.31 or later is required.*ajet env create vllm"):
        check_version(text)


async def test_a_server_that_is_too_old_is_refused_before_it_is_used(tmp_path: Path) -> None:
    asked: list[bytes] = []

    async def old_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split(b" ")[1])
        body = json.dumps({"version": "0.24.0"}).encode()
        head = f"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(old_server, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    engine = make_engine(tmp_path, ModelServers(urls=(url,)))
    with pytest.raises(EngineError, match=r"has version 0\.24\.0"):
        await engine.start(ModelConfig(path="/models/tiny", dtype="float32"))
    await engine.close()
    server.close()
    assert set(asked) == {b"/health", b"/version"}
