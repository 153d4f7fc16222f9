"""Check a gateway under steady load for growth over time.

Agents run episodes of 8 calls at a fixed rate, and the scripted trainer takes batch after batch.
Every ten seconds the benchmark records the gateway's memory and file descriptors, the database's
bytes per episode and the median latency. The slopes are a least-squares fit over the run without
its first part.

The JSON line comes last; `--output` also writes it to a file, with date and hardware.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from load import CALLS, Connection, first_messages, recorded_calls, start_run, turn
from options import positive
from reporting import report
from stub_processes import Child, gateway

from ajet_core import credentials
from ajet_testing.tokenizers import write_model

AGENTS = 16
BATCH = {"full_by": "tasks", "tasks": 4, "episodes_per_task": 8}
SAMPLE_SECONDS = 10.0
# Bounded structures fill up first: leases that have not expired, tables of recent rows, caches.
WARM_UP_SHARE = 0.25


@dataclass(frozen=True)
class Sample:
    """Measurements at one time."""

    hours: float
    rss_mib: float
    files: float
    bytes_per_episode: float
    p50_ms: float


@dataclass
class Load:
    """The agents' work and its measurements.

    :param rate: calls per second, of all agents together.
    """

    child: Child
    client: str
    rate: float
    ends: float
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    latencies: list[float] = field(default_factory=list)
    calls: int = 0
    episodes: int = 0
    started: float = field(default_factory=time.perf_counter)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    async def work(self) -> None:
        """Run one agent."""
        connection = await Connection.open(self.child.port)
        size = BATCH["episodes_per_task"]
        while time.perf_counter() < self.ends:
            task = f"task-{next(self.numbers) // int(size)}"
            body = {"task_id": task, "wait_seconds": 300, "lease_seconds": 60}
            grant, _ = await connection.post("/v1/episodes", self.client, body)
            messages = first_messages(self.rng)
            for number in range(CALLS):
                await self._pace()
                self.latencies.append(await turn(connection, grant["api_key"], messages, number))
            path = f"/v1/episodes/{grant['episode_id']}/end"
            await connection.post(path, self.client, {"reward": self.rng.random()})
            self.episodes += 1
        connection.close()

    async def _pace(self) -> None:
        """Wait until the next call is due."""
        due = self.started + self.calls / self.rate
        self.calls += 1
        await asyncio.sleep(max(0.0, due - time.perf_counter()))


def slope(times: Sequence[float], values: Sequence[float]) -> float:
    """Return the change per unit of time, by least squares."""
    return statistics.linear_regression(times, values).slope


def database_bytes(run_dir: Path) -> int:
    """Return the size of the store's files."""
    return sum(path.stat().st_size for path in run_dir.glob("samples.sqlite3*"))


async def watch(load: Load, run_dir: Path) -> list[Sample]:
    """Return the samples until the load ends."""
    samples: list[Sample] = []
    while time.perf_counter() < load.ends:
        await asyncio.sleep(SAMPLE_SECONDS)
        latencies, load.latencies = load.latencies, []
        sample = Sample(
            hours=(time.perf_counter() - load.started) / 3600,
            rss_mib=load.child.rss_mib(),
            files=load.child.open_files(),
            bytes_per_episode=database_bytes(run_dir) / max(1, load.episodes),
            p50_ms=statistics.median(latencies) * 1e3,
        )
        samples.append(sample)
        print(sample, file=sys.stderr)
    return samples


async def _steps(load: Load) -> int:
    """Return the number of trained steps."""
    import httpx2

    url = f"http://127.0.0.1:{load.child.port}/v1/status"
    async with httpx2.AsyncClient(headers={"authorization": f"Bearer {load.client}"}) as http:
        return int((await http.get(url)).json()["step"])


async def measure(minutes: float, rate: float, directory: Path) -> dict[str, Any]:
    """Run the benchmark, and return the figures."""
    model = write_model(directory / "models" / "tiny", "qwen3")
    (model / "model.safetensors").write_bytes(b"")
    run_dir = directory / "run"
    with gateway(run_dir, model) as server:
        tokens = credentials.find_local(f"http://127.0.0.1:{server.port}")
        assert tokens is not None
        await start_run(server.port, tokens.control, model, BATCH)
        load = Load(server, tokens.client, rate, time.perf_counter() + 60 * minutes)
        agents = [asyncio.create_task(load.work()) for _ in range(AGENTS)]
        samples = await watch(load, run_dir)
        # Some agents may still wait for slots that no other agent will free.
        done, waiting = await asyncio.wait(agents, timeout=SAMPLE_SECONDS)
        for agent in waiting:
            agent.cancel()
        for agent in done:
            await agent
        steps = await _steps(load)
    kept = samples[int(len(samples) * WARM_UP_SHARE) :]
    hours = [s.hours for s in kept]
    return {
        "benchmark": "soak",
        "minutes": minutes,
        "rss_slope_mib_h": round(slope(hours, [s.rss_mib for s in kept]), 2),
        "fd_slope_h": round(slope(hours, [s.files for s in kept]), 2),
        "p50_slope_ms_h": round(slope(hours, [s.p50_ms for s in kept]), 3),
        "db_bytes_per_episode_slope_h": round(slope(hours, [s.bytes_per_episode for s in kept]), 1),
        "rss_mib": [round(s.rss_mib, 1) for s in (kept[0], kept[-1])],
        "p50_ms": [round(s.p50_ms, 3) for s in (kept[0], kept[-1])],
        "db_bytes_per_episode": [round(s.bytes_per_episode) for s in (kept[0], kept[-1])],
        "unaccounted": load.calls - recorded_calls(run_dir),
        "calls": load.calls,
        "episodes": load.episodes,
        "steps": steps,
    }


def main() -> None:
    """Run the benchmark and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=positive, default=30.0)
    parser.add_argument("--rate", type=positive, default=100.0, help="calls per second")
    parser.add_argument(
        "--output", type=Path, help="also write the JSON line, with date and hardware"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ajet-soak-") as directory:
        os.environ["XDG_STATE_HOME"] = directory
        result = asyncio.run(measure(args.minutes, args.rate, Path(directory)))
    report(result, args.output)


if __name__ == "__main__":
    main()
