"""What the gateway adds to a model call: recorded durably, rendered and parsed for real, in front of a stub engine.

Agents talk in episodes of 8 calls: a first prompt of about 1.3 KB, replies of 64 tokens with logprobs, each call
with the whole conversation so far. The same requests go to a bare recorder in the same run: a process that parses
them, keeps them in memory and answers with a fixed reply of the same form. Rounds of both alternate, so that the
machine's other load hits both alike; CPU time is the gateway process's own, claims and ends included.

The JSON line comes last; `--output` keeps it, with date and hardware.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reporting import report
from stub_processes import Child, bare_recorder, gateway

from ajet_core import credentials
from ajet_core.testing.tokenizers import CORPUS, renderer_for, write_model

CALLS, REPLY_TOKENS = 8, 64
CONNECTIONS = 64
FIRST_PROMPT_BYTES = 1300


class Connection:
    """A kept connection that sends JSON and reads JSON."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def post(self, path: str, key: str, body: dict[str, Any]) -> tuple[dict[str, Any], float]:
        """The answer, and the seconds from the request's last byte to the answer's."""
        data = json.dumps(body).encode()
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
        return json.loads(content), seconds

    def close(self) -> None:
        self._writer.close()


@dataclass
class Measured:
    """A round."""

    seconds: float = 0.0
    cpu: float = 0.0
    latencies: list[float] = field(default_factory=list)

    @property
    def calls(self) -> int:
        return len(self.latencies)


def first_messages(rng: random.Random) -> list[dict[str, Any]]:
    """A system message and a question, FIRST_PROMPT_BYTES together."""
    words = " ".join(CORPUS[:4]).split()
    system = ""
    while len(system) < FIRST_PROMPT_BYTES - 100:
        system += rng.choice(words) + " "
    return [
        {"role": "system", "content": system},
        {"role": "user", "content": f"Where is the goal? Begin at {rng.random()}."},
    ]


Claim = Callable[[Connection], Awaitable[tuple[str, Callable[[], Awaitable[None]]]]]


async def episode(
    connection: Connection, claim: Claim, rng: random.Random, measured: Measured
) -> None:
    """One agent's episode."""
    key, end = await claim(connection)
    messages = first_messages(rng)
    for turn in range(CALLS):
        body = {"model": "m", "messages": messages, "max_tokens": REPLY_TOKENS, "logprobs": True}
        answer, seconds = await connection.post("/v1/chat/completions", key, body)
        measured.latencies.append(seconds)
        said = answer["choices"][0]["message"]
        messages += [
            {"role": "assistant", "content": said["content"]},
            {"role": "user", "content": f"goal is {turn} down and 1 left."},
        ]
    await end()


async def round_of(child: Child, claim: Claim, connections: int, episodes: int) -> Measured:
    """`episodes` episodes over `connections` connections."""
    opened = [await Connection.open(child.port) for _ in range(connections)]
    measured = Measured()
    rng = random.Random(0)
    left = iter(range(episodes))

    async def work(connection: Connection) -> None:
        for _ in left:
            await episode(connection, claim, rng, measured)

    cpu, started = child.cpu_seconds(), time.perf_counter()
    await asyncio.gather(*map(work, opened))
    measured.seconds = time.perf_counter() - started
    measured.cpu = child.cpu_seconds() - cpu
    for connection in opened:
        connection.close()
    return measured


def swarm_claim(client_token: str) -> Claim:
    """Claims eval episodes, which need no place in a batch."""
    numbers = iter(range(10**9))

    async def claim(connection: Connection) -> tuple[str, Callable[[], Awaitable[None]]]:
        body = {"task_id": f"task-{next(numbers)}", "kind": "eval"}
        grant, _ = await connection.post("/v1/episodes", client_token, body)

        async def end() -> None:
            path = f"/v1/episodes/{grant['episode_id']}/end"
            await connection.post(path, client_token, {"reward": 1.0})

        return grant["api_key"], end

    return claim


async def bare_claim(_: Connection) -> tuple[str, Callable[[], Awaitable[None]]]:
    """Nothing to claim."""

    async def end() -> None:
        return None

    return "none", end


def reply_ids() -> list[int]:
    """REPLY_TOKENS tokens of plain text, the stop token included."""
    renderer = renderer_for("qwen3")
    text = " ".join(CORPUS[:1] * 9)
    return [*renderer.encode(text)[: REPLY_TOKENS - 1], *renderer.encode("<|im_end|>")]


async def start_run(port: int, control: str, model_dir: Path) -> None:
    """Configure the scripted components and wait until episodes can be claimed."""
    import httpx

    config = {
        "model": {"path": str(model_dir), "renderer": "qwen3"},
        "engine": {
            "name": "scripted",
            "settings": {
                "reply_ids": reply_ids(),
                "chunk_tokens": REPLY_TOKENS,
                "max_context": 16384,
            },
        },
        "trainer": {"name": "scripted"},
    }
    headers = {"authorization": f"Bearer {control}"}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=90) as http:
        (await http.put("/v1/run", headers=headers, json=config)).raise_for_status()
        started = await http.post("/v1/run/start", headers=headers, json={"wait_seconds": 60})
        started.raise_for_status()


def recorded_calls(run_dir: Path) -> int:
    """Calls in the store's file."""
    with sqlite3.connect(f"file:{run_dir / 'samples.sqlite3'}?mode=ro", uri=True) as store:
        (count,) = store.execute("SELECT count(*) FROM calls").fetchone()
    return int(count)


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


async def measure(args: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """All rounds, and what they say."""
    model = write_model(directory / "models" / "tiny", "qwen3")
    (model / "model.safetensors").write_bytes(b"")
    run_dir = directory / "run"
    with gateway(run_dir, model) as server:
        tokens = credentials.find_local(f"http://127.0.0.1:{server.port}")
        assert tokens is not None
        await start_run(server.port, tokens.control, model)
        claim = swarm_claim(tokens.client)
        warm = Measured()
        connection = await Connection.open(server.port)
        await episode(connection, claim, random.Random(1), warm)
        key, end = await claim(connection)
        body = {
            "model": "m",
            "messages": first_messages(random.Random(2)),
            "max_tokens": REPLY_TOKENS,
            "logprobs": True,
        }
        reply, _ = await connection.post("/v1/chat/completions", key, body)
        await end()
        connection.close()
        reply_file = directory / "reply.json"
        reply_file.write_text(json.dumps(reply))
        full: list[Measured] = []
        bare: list[Measured] = []
        one: list[Measured] = []
        bare_one: list[Measured] = []
        with bare_recorder(reply_file) as recorder:
            for _ in range(args.rounds):
                bare.append(await round_of(recorder, bare_claim, CONNECTIONS, 2 * args.episodes))
                full.append(await round_of(server, claim, CONNECTIONS, args.episodes))
                bare_one.append(await round_of(recorder, bare_claim, 1, args.episodes // 16))
                one.append(await round_of(server, claim, 1, args.episodes // 16))
    made = warm.calls + 1 + sum(m.calls for m in (*full, *one))
    latencies = [value for m in full for value in m.latencies]
    alone = [value for m in one for value in m.latencies]
    alone_bare = [value for m in bare_one for value in m.latencies]

    def rate(rounds: Sequence[Measured]) -> float:
        return statistics.median(m.calls / m.seconds for m in rounds)

    return {
        "benchmark": "gateway",
        "ratio_to_bare": round(rate(full) / rate(bare), 4),
        "cpu_us_per_call": round(statistics.median(m.cpu / m.calls for m in full) * 1e6, 1),
        "added_p50_ms": round((quantile(alone, 0.5) - quantile(alone_bare, 0.5)) * 1e3, 3),
        "p99_over_p50": round(quantile(latencies, 0.99) / quantile(latencies, 0.5), 2),
        "unaccounted": made - recorded_calls(run_dir),
        "calls_per_second": round(rate(full), 1),
        "bare_calls_per_second": round(rate(bare), 1),
        "bare_cpu_us_per_call": round(statistics.median(m.cpu / m.calls for m in bare) * 1e6, 1),
        "cpu_us_per_call_at_one": round(statistics.median(m.cpu / m.calls for m in one) * 1e6, 1),
        "calls": made,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=256, help="of a round at 64 connections")
    parser.add_argument(
        "--output", type=Path, help="also write the JSON line, with date and hardware"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ajet-gateway-") as directory:
        os.environ["XDG_STATE_HOME"] = directory
        result = asyncio.run(measure(args, Path(directory)))
    report(result, args.output)


if __name__ == "__main__":
    main()
