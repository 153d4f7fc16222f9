"""Benchmark what the gateway adds to a model call: durable recording, rendering and parsing.

The engine is a stub. Agents talk in episodes of 8 calls: a first prompt of about 1.3 KB, replies of
64 tokens with logprobs, each call with the whole conversation so far. The same requests go to a
bare recorder in the same run: a process that parses them, keeps them in memory and answers with a
fixed reply of the same form. Rounds of both alternate, so that other load of the machine affects
both alike. CPU time is the gateway process's own, including claims and ends.

With `--open` episodes stay open and claims wait, see `open_episodes`.

The JSON line comes last; `--output` also writes it to a file, with date and hardware.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from load import (
    CALLS,
    REPLY_TOKENS,
    Connection,
    first_messages,
    quantile,
    recorded_calls,
    start_run,
    turn,
)
from open_episodes import measure_open
from options import at_least
from reporting import report
from stub_processes import Child, bare_recorder, gateway

from ajet_core import credentials
from ajet_testing.tokenizers import write_model

CONNECTIONS = 64


@dataclass
class Measured:
    """Measurements of a round."""

    seconds: float = 0.0
    cpu: float = 0.0
    latencies: list[float] = field(default_factory=list)

    @property
    def calls(self) -> int:
        return len(self.latencies)


Claim = Callable[[Connection], Awaitable[tuple[str, Callable[[], Awaitable[None]]]]]


async def episode(
    connection: Connection, claim: Claim, rng: random.Random, measured: Measured
) -> None:
    """Run one agent's episode."""
    key, end = await claim(connection)
    messages = first_messages(rng)
    for number in range(CALLS):
        measured.latencies.append(await turn(connection, key, messages, number))
    await end()


async def round_of(
    child: Child, claim: Claim, connections: int, episodes: int, seed: int, group: int
) -> Measured:
    """Run `episodes` episodes over `connections` connections; each `group` shares a prompt."""
    opened = [await Connection.open(child.port) for _ in range(connections)]
    measured = Measured()
    left = iter(range(episodes))

    async def work(connection: Connection) -> None:
        for number in left:
            rng = random.Random(f"{seed} {number // group}")
            await episode(connection, claim, rng, measured)

    cpu, started = child.cpu_seconds(), time.perf_counter()
    await asyncio.gather(*map(work, opened))
    measured.seconds = time.perf_counter() - started
    measured.cpu = child.cpu_seconds() - cpu
    for connection in opened:
        connection.close()
    return measured


async def started(server: Child, model: Path) -> Claim:
    """Start a run on a server, and return what claims its episodes."""
    tokens = credentials.find_local(f"http://127.0.0.1:{server.port}")
    assert tokens is not None
    await start_run(server.port, tokens.control, model)
    return swarm_claim(tokens.client)


def swarm_claim(client_token: str) -> Claim:
    """Return a function that claims eval episodes, which need no slot in a batch."""
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
    """Return a key without claiming anything."""

    async def end() -> None:
        return None

    return "none", end


async def measure(args: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Run all rounds, and return the figures."""
    model = write_model(directory / "models" / "tiny", "qwen3")
    (model / "model.safetensors").write_bytes(b"")
    run_dir = directory / "run"
    with gateway(run_dir, model) as server:
        claim = await started(server, model)
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
            few, group = args.episodes // 16, args.group
            for seed in range(100, 100 + 4 * args.rounds, 4):
                bare.append(
                    await round_of(
                        recorder, bare_claim, CONNECTIONS, 2 * args.episodes, seed, group
                    )
                )
                full.append(
                    await round_of(server, claim, CONNECTIONS, args.episodes, seed + 1, group)
                )
                bare_one.append(await round_of(recorder, bare_claim, 1, few, seed + 2, group))
                one.append(await round_of(server, claim, 1, few, seed + 3, group))
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
    """Run the benchmark and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=at_least(1), default=5)
    parser.add_argument(
        "--episodes", type=at_least(1), default=256, help="of a round at 64 connections"
    )
    parser.add_argument(
        "--group",
        type=at_least(1),
        default=1,
        help="episodes that share a first prompt, as rollouts of a task do",
    )
    parser.add_argument(
        "--open",
        type=at_least(1),
        help="measure instead with this many open episodes, a tenth as many waiting claims",
    )
    parser.add_argument(
        "--output", type=Path, help="also write the JSON line, with date and hardware"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ajet-gateway-") as directory:
        os.environ["XDG_STATE_HOME"] = directory
        if args.open:
            result = asyncio.run(measure_open(args.open, args.rounds, Path(directory)))
        else:
            result = asyncio.run(measure(args, Path(directory)))
    report(result, args.output)


if __name__ == "__main__":
    main()
