"""Load for a gateway with a stub engine: connections, conversations, and a run for calls."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ajet_testing.tokenizers import CORPUS, renderer_for

CALLS, REPLY_TOKENS = 8, 64
FIRST_PROMPT_BYTES = 1300


class Connection:
    """A keep-alive connection that sends and receives JSON."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def post(self, path: str, key: str, body: dict[str, Any]) -> tuple[dict[str, Any], float]:
        """Return the answer, and the seconds from the request's last byte to the answer's."""
        content, seconds = await self.send(path, key, json.dumps(body).encode())
        return json.loads(content), seconds

    async def send(self, path: str, key: str, data: bytes) -> tuple[bytes, float]:
        """Send a JSON text, and return the answer and the seconds, as `post` does."""
        head = (
            f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        )
        started = time.perf_counter()
        self._writer.write(head.encode() + data)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        content = await self._reader.readexactly(length)
        seconds = time.perf_counter() - started
        if int(answer.split(b" ", 2)[1]) >= 400:
            raise RuntimeError(f"{path}: {content.decode(errors='replace')}")
        return content, seconds

    def close(self) -> None:
        self._writer.close()


def first_messages(rng: random.Random) -> list[dict[str, Any]]:
    """Return a system message and a question, of FIRST_PROMPT_BYTES together."""
    words = " ".join(CORPUS[:4]).split()
    system = ""
    while len(system) < FIRST_PROMPT_BYTES - 100:
        system += rng.choice(words) + " "
    return [
        {"role": "system", "content": system},
        {"role": "user", "content": f"Where is the goal? Begin at {rng.random()}."},
    ]


async def turn(
    connection: Connection, key: str, messages: list[dict[str, Any]], number: int
) -> float:
    """Make one call, append the answer and the next question, and return the seconds."""
    body = {"model": "m", "messages": messages, "max_tokens": REPLY_TOKENS, "logprobs": True}
    answer, seconds = await connection.post("/v1/chat/completions", key, body)
    said = answer["choices"][0]["message"]
    messages += [
        {"role": "assistant", "content": said["content"]},
        {"role": "user", "content": f"goal is {number} down and 1 left."},
    ]
    return seconds


def reply_ids() -> list[int]:
    """Return REPLY_TOKENS tokens of plain text, including the stop token."""
    renderer = renderer_for("qwen3")
    text = " ".join(CORPUS[:1] * 9)
    return [*renderer.encode(text)[: REPLY_TOKENS - 1], *renderer.encode("<|im_end|>")]


async def start_run(
    port: int,
    control: str,
    model_dir: Path,
    batch: Mapping[str, Any] | None = None,
    mixture: Mapping[str, Any] | None = None,
    engine: Mapping[str, Any] | None = None,
) -> None:
    """Configure the scripted components, and wait until episodes can be claimed.

    :param engine: more settings of the engine.
    """
    import httpx2

    config = {
        "model": {"path": str(model_dir), "renderer": "qwen3"},
        "engine": {
            "name": "scripted",
            "settings": {
                "reply_ids": reply_ids(),
                "chunk_tokens": REPLY_TOKENS,
                "max_context": 16384,
                **(engine or {}),
            },
        },
        "trainer": {"name": "scripted"},
        "batch": batch or {},
        "mixture": mixture,
        # A load test: all rewards may be equal.
        "failures": {"pause_on": []},
    }
    headers = {"authorization": f"Bearer {control}"}
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=90) as http:
        (await http.put("/v1/run", headers=headers, json=config)).raise_for_status()
        started = await http.post("/v1/run/start", headers=headers, json={"wait_seconds": 60})
        started.raise_for_status()


def recorded_calls(run_dir: Path) -> int:
    """Return the number of calls in the store's file."""
    with sqlite3.connect(f"file:{run_dir / 'samples.sqlite3'}?mode=ro", uri=True) as store:
        (count,) = store.execute("SELECT count(*) FROM calls").fetchone()
    return int(count)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the values lie."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
