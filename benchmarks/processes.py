"""Benchmark a server in several processes: what a call costs in each, and what they can do at once.

The engine is a stub and agents are those of `benchmarks/gateway.py`, but with a connection for the
episode's client and one for its agent, as SDKs have them. Rounds with one process alternate with
rounds with several, so that other load of the machine affects both alike.

A machine with few cores cannot show the throughput of several processes beside the load and the
engine's worker. So it is computed: a server with one process is busy for `cpu_us_one` per call; one
with several is limited by its busiest process, at `cpu_us_busiest` per call. `speedup_by_cpu` is
their ratio. `speedup_measured` is that of the calls per second of this machine, and
`load_cpu_us` and `engine_cpu_us` say what the load and the engine's worker took beside.

The JSON line comes last; `--output` also writes it to a file, with date and hardware.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from load import Connection, first_messages, quantile, recorded_calls, start_run, turn
from options import at_least
from reporting import report
from stub_processes import Child, gateway

from ajet_core import credentials
from ajet_testing.tokenizers import write_model

CALLS = 8


@dataclass
class Round:
    """Measurements of a round.

    :ivar cpu: CPU seconds by process: the server's, then those of gateway processes.
    """

    seconds: float = 0.0
    cpu: list[float] = field(default_factory=list)
    load_cpu: float = 0.0
    engine_cpu: float = 0.0
    latencies: list[float] = field(default_factory=list)

    def micros(self, seconds: float) -> float:
        """Return microseconds per call."""
        return seconds / len(self.latencies) * 1e6


class Server:
    """A server with a run, in one or several processes."""

    def __init__(self, child: Child, processes: int) -> None:
        self.child = child
        self._processes = processes
        self._numbers = iter(range(10**9))

    async def start(self, model: Path) -> None:
        tokens = credentials.find_local(f"http://127.0.0.1:{self.child.port}")
        assert tokens is not None
        self._token = tokens.client
        await start_run(self.child.port, tokens.control, model)
        parts = [self.child] if self._processes == 1 else self.child.children()
        # The server process is the one with a worker.
        self.parts = sorted(parts, key=lambda part: not part.children())
        (self.engine,) = self.parts[0].children()

    async def episode(self, client: Connection, rng: random.Random, done: Round) -> None:
        body = {"task_id": f"task-{next(self._numbers)}", "kind": "eval"}
        grant, _ = await client.post("/v1/episodes", self._token, body)
        agent = await Connection.open(self.child.port)
        messages = first_messages(rng)
        for number in range(CALLS):
            done.latencies.append(await turn(agent, grant["api_key"], messages, number))
        agent.close()
        await client.post(f"/v1/episodes/{grant['episode_id']}/end", self._token, {"reward": 1.0})

    async def round(self, connections: int, episodes: int, seed: int) -> Round:
        """Run episodes, `connections` at a time."""
        clients = [await Connection.open(self.child.port) for _ in range(connections)]
        done, left = Round(), iter(range(episodes))

        async def work(client: Connection) -> None:
            for number in left:
                await self.episode(client, random.Random(f"{seed} {number}"), done)

        processes = [*self.parts, self.engine]
        before = [process.cpu_seconds() for process in processes]
        load, started = time.process_time(), time.perf_counter()
        await asyncio.gather(*map(work, clients))
        done.seconds = time.perf_counter() - started
        done.load_cpu = time.process_time() - load
        *done.cpu, done.engine_cpu = (
            process.cpu_seconds() - was for process, was in zip(processes, before, strict=True)
        )
        for client in clients:
            client.close()
        return done


async def measure(args: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Run all rounds, and return the figures."""
    model = write_model(directory / "models" / "tiny", "qwen3")
    (model / "model.safetensors").write_bytes(b"")
    made = 0
    rounds: dict[int, list[Round]] = {1: [], args.processes: []}
    with ExitStack() as running:
        servers = {}
        for processes in rounds:
            run_dir = directory / f"run-{processes}"
            server = Server(running.enter_context(gateway(run_dir, model, processes)), processes)
            await server.start(model)
            made += len((await server.round(16, 32, 0)).latencies)
            servers[processes] = server
        for seed in range(1, args.rounds + 1):
            for processes, server in servers.items():
                done = await server.round(args.connections, args.episodes, seed)
                rounds[processes].append(done)
                made += len(done.latencies)
    one, several = rounds[1], rounds[args.processes]

    def middle(values: list[float]) -> float:
        return round(statistics.median(values), 1)

    def rate(of: list[Round]) -> float:
        return statistics.median(len(r.latencies) / r.seconds for r in of)

    cpu_one = middle([r.micros(r.cpu[0]) for r in one])
    cpu_several = [
        middle(list(part)) for part in zip(*(map(r.micros, r.cpu) for r in several), strict=True)
    ]
    recorded = sum(recorded_calls(directory / f"run-{processes}") for processes in rounds)
    return {
        "benchmark": "processes",
        "processes": args.processes,
        "speedup_by_cpu": round(cpu_one / max(cpu_several), 3),
        "speedup_measured": round(rate(several) / rate(one), 3),
        "cpu_us_one": cpu_one,
        "cpu_us_server": cpu_several[0],
        "cpu_us_gateways": cpu_several[1:],
        "cpu_us_busiest": max(cpu_several),
        "balance": round(min(cpu_several[1:]) / max(cpu_several[1:]), 3),
        "load_cpu_us": middle([r.micros(r.load_cpu) for r in several]),
        "engine_cpu_us": middle([r.micros(r.engine_cpu) for r in several]),
        "p99_over_p50": round(
            statistics.median(
                quantile(r.latencies, 0.99) / quantile(r.latencies, 0.5) for r in several
            ),
            2,
        ),
        "calls_per_second_one": round(rate(one), 1),
        "calls_per_second": round(rate(several), 1),
        "unaccounted": made - recorded,
        "calls": made,
    }


def main() -> None:
    """Run the benchmark and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=at_least(2), default=2)
    parser.add_argument("--rounds", type=at_least(1), default=5)
    parser.add_argument("--episodes", type=at_least(1), default=256, help="of a round")
    parser.add_argument("--connections", type=at_least(1), default=64)
    parser.add_argument(
        "--output", type=Path, help="also write the JSON line, with date and hardware"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ajet-processes-") as directory:
        os.environ["XDG_STATE_HOME"] = directory
        result = asyncio.run(measure(args, Path(directory)))
    report(result, args.output)


if __name__ == "__main__":
    main()
