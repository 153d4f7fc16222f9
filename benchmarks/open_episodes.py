"""Benchmark many open episodes and waiting claims: memory, claim latency, and the cost of a call.

Two gateways run side by side, one with few open episodes and claims, one with many; their rounds
alternate. All slots of the batch are taken. In a round agents run episodes of 8 calls. After each,
an episode that was already open is aborted, so that the first waiting claim gets its slot and the
next agent starts. The wait of a claim counts from the request that aborts an episode, including its
write to disk, to the grant.
"""

from __future__ import annotations

import asyncio
import random
import resource
import statistics
import time
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from load import CALLS, Connection, first_messages, quantile, recorded_calls, start_run, turn
from stub_processes import Child, gateway

from ajet_core import credentials
from ajet_testing.tokenizers import write_model

FEW = 100
CLAIMS_SHARE = 10
AGENTS = 32
FIRST_CALLS = 2
ROUND_SECONDS = 5.0


@dataclass
class FullGateway:
    """A gateway whose batch has `size` slots, and the agents that have them.

    :ivar idle: ids of open episodes that no agent works on.
    :ivar given_up: times of aborts whose slots are not claimed yet.
    :ivar waits: seconds from a slot's release to its next claim.
    """

    child: Child
    client: str
    size: int
    run_dir: Path
    rng: random.Random
    idle: list[str] = field(default_factory=list)
    granted: asyncio.Queue[dict[str, Any]] = field(default_factory=asyncio.Queue)
    given_up: deque[float] = field(default_factory=deque)
    waits: list[float] = field(default_factory=list)
    calls: int = 0
    costs: list[float] = field(default_factory=list)

    async def claim(self, connection: Connection) -> dict[str, Any]:
        body = {
            "task_id": f"task-{self.rng.random()}",
            "lease_seconds": 86400,
            "wait_seconds": 300,
        }
        grant, _ = await connection.post("/v1/episodes", self.client, body)
        return grant

    async def talk(self, connection: Connection, grant: dict[str, Any], calls: int) -> None:
        messages = first_messages(self.rng)
        for number in range(calls):
            await turn(connection, grant["api_key"], messages, number)
            self.calls += 1
        self.idle.append(grant["episode_id"])

    async def fill(self) -> None:
        """Take all slots; each episode makes its first calls."""
        numbers = iter(range(self.size))

        async def work() -> None:
            connection = await Connection.open(self.child.port)
            for _ in numbers:
                await self.talk(connection, await self.claim(connection), FIRST_CALLS)
            connection.close()

        await asyncio.gather(*(work() for _ in range(AGENTS)))

    async def wait_in_line(self) -> None:
        """Run one of the claims that always wait."""
        connection = await Connection.open(self.child.port)
        while True:
            grant = await self.claim(connection)
            self.waits.append(time.perf_counter() - self.given_up.popleft())
            self.granted.put_nowait(grant)

    async def round(self) -> None:
        """Run the agents for one round."""
        ends = time.perf_counter() + ROUND_SECONDS
        calls, cpu = self.calls, self.child.cpu_seconds()

        async def work() -> None:
            connection = await Connection.open(self.child.port)
            while time.perf_counter() < ends:
                over = self.idle.pop(self.rng.randrange(len(self.idle)))
                self.given_up.append(time.perf_counter())
                path = f"/v1/episodes/{over}/abort"
                await connection.post(
                    path, self.client, {"reason": "given up", "cause": "cancelled"}
                )
                await self.talk(connection, await self.granted.get(), CALLS)
            connection.close()

        await asyncio.gather(*(work() for _ in range(AGENTS)))
        self.costs.append((self.child.cpu_seconds() - cpu) / (self.calls - calls) * 1e6)


async def _waiting(gateway: FullGateway, count: int) -> None:
    """Wait until the server reports this many waiting claims."""
    import httpx2

    url = f"http://127.0.0.1:{gateway.child.port}/v1/status"
    headers = {"authorization": f"Bearer {gateway.client}"}
    async with httpx2.AsyncClient(headers=headers) as http:
        while (await http.get(url)).json()["counters"]["waiting_claims"] < count:
            pass


async def measure_open(many: int, rounds: int, directory: Path) -> dict[str, Any]:
    """Run all rounds, and return the figures."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    model = write_model(directory / "models" / "tiny", "qwen3")
    (model / "model.safetensors").write_bytes(b"")
    gateways: list[FullGateway] = []
    with ExitStack() as servers:
        lines: list[asyncio.Task[None]] = []
        for size in (FEW, many):
            run_dir = directory / f"run-{size}"
            child = servers.enter_context(gateway(run_dir, model))
            tokens = credentials.find_local(f"http://127.0.0.1:{child.port}")
            assert tokens is not None
            batch = {"full_by": "episodes", "tasks": size // 10, "episodes_per_task": 10}
            await start_run(child.port, tokens.control, model, batch)
            busy = FullGateway(child, tokens.client, size, run_dir, random.Random(size))
            await busy.fill()
            waiting = size // CLAIMS_SHARE
            lines += [asyncio.create_task(busy.wait_in_line()) for _ in range(waiting)]
            await _waiting(busy, waiting)
            gateways.append(busy)
        few, full = gateways
        rss = full.child.rss_mib()
        for _ in range(rounds):
            await few.round()
            await full.round()
            rss = max(rss, full.child.rss_mib())
        for line in lines:
            if line.done():
                await line
            line.cancel()
        await asyncio.gather(*lines, return_exceptions=True)
    ratios = [high / low for high, low in zip(full.costs, few.costs, strict=True)]
    return {
        "benchmark": "gateway --open",
        "open": many,
        "waiting": many // CLAIMS_SHARE,
        "rss_mib": round(rss, 1),
        "claim_p99_ms": round(quantile(full.waits, 0.99) * 1e3, 2),
        "cost_ratio": round(statistics.median(ratios), 3),
        "unaccounted": sum(g.calls - recorded_calls(g.run_dir) for g in gateways),
        "claim_p50_ms": round(quantile(full.waits, 0.5) * 1e3, 2),
        "claim_p99_ms_few": round(quantile(few.waits, 0.99) * 1e3, 2),
        "cpu_us_per_call": round(statistics.median(full.costs), 1),
        "cpu_us_per_call_few": round(statistics.median(few.costs), 1),
        "claims": len(full.waits),
        "calls": full.calls,
    }
