"""Benchmark gateways as on other machines: what a call costs the server, a gateway, and forwarded.

Two gateways (`ajet gateway`) and their server run on this machine, with the stub engine and the
agents of `benchmarks/processes.py`. In half of the rounds each agent keeps to one gateway, as
behind a load balancer that keeps connections together. In the other half it alternates between both
with each call, so half of the calls are forwarded. Rounds alternate, so that other load of the
machine affects both alike.

`forward_us` is the additional CPU time of both gateways for each forwarded call; `forward_ratio` is
it in relation to a call that is not forwarded, with the server's part. `speedup_by_cpu` is the
number of calls of two gateways, as far as the busiest process allows, in relation to a server with
one process. The JSON line comes last; `--output` also writes it to a file, with date and hardware.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from load import Connection, first_messages, quantile, recorded_calls, turn
from options import at_least
from processes import CALLS, Round, Server
from reporting import report
from stub_processes import Child, gateway, gateways_of

from ajet_testing.tokenizers import write_model


class Gateways(Server):
    """A server whose calls two gateways answer."""

    def __init__(self, child: Child, gateways: list[Child]) -> None:
        super().__init__(child, 1)
        self.gateways = gateways
        self.alternate = False

    async def start(self, model: Path) -> None:
        await super().start(model)
        self.parts = [self.child, *self.gateways]

    async def episode(self, client: Connection, rng: random.Random, done: Round) -> None:
        number = next(self._numbers)
        body = {"task_id": f"task-{number}", "kind": "eval"}
        grant, _ = await client.post("/v1/episodes", self._token, body)
        agents = [await Connection.open(one.port) for one in self.gateways]
        messages = first_messages(rng)
        for call in range(CALLS):
            agent = agents[(number + call * self.alternate) % len(agents)]
            done.latencies.append(await turn(agent, grant["api_key"], messages, call))
        for agent in agents:
            agent.close()
        await client.post(f"/v1/episodes/{grant['episode_id']}/end", self._token, {"reward": 1.0})


async def measure(args: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Run all rounds, and return the figures."""
    model = write_model(directory / "models" / "tiny", "qwen3")
    (model / "model.safetensors").write_bytes(b"")
    made = 0
    alone: list[Round] = []
    kept: list[Round] = []
    alternating: list[Round] = []
    with ExitStack() as running:
        one = Server(running.enter_context(gateway(directory / "one", model)), 1)
        await one.start(model)
        two = Gateways(*running.enter_context(gateways_of(directory / "two", model, 2)))
        await two.start(model)
        for server in (one, two):
            made += len((await server.round(16, 32, 0)).latencies)
        for seed in range(1, args.rounds + 1):
            for server, alternate, rounds in (
                (one, False, alone),
                (two, False, kept),
                (two, True, alternating),
            ):
                two.alternate = alternate
                rounds.append(await server.round(args.connections, args.episodes, seed))
                made += len(rounds[-1].latencies)

    def middle(values: list[float]) -> float:
        return round(statistics.median(values), 1)

    def parts(rounds: list[Round]) -> list[float]:
        return [
            middle(list(of)) for of in zip(*(map(r.micros, r.cpu) for r in rounds), strict=True)
        ]

    def slow(rounds: list[Round]) -> float:
        tails = (quantile(r.latencies, 0.99) / quantile(r.latencies, 0.5) for r in rounds)
        return round(statistics.median(tails), 2)

    (cpu_alone,) = parts(alone)
    at_one, at_both = parts(kept), parts(alternating)
    forward = 2 * (sum(at_both[1:]) - sum(at_one[1:]))
    return {
        "benchmark": "machines",
        "speedup_by_cpu": round(cpu_alone / max(at_one), 3),
        "forward_ratio": round(forward / sum(at_one), 3),
        "forward_us": round(forward, 1),
        "cpu_us_one_process": cpu_alone,
        "cpu_us_server": at_one[0],
        "cpu_us_gateways": at_one[1:],
        "cpu_us_server_alternating": at_both[0],
        "cpu_us_gateways_alternating": at_both[1:],
        "p99_over_p50": slow(kept),
        "p99_over_p50_alternating": slow(alternating),
        "unaccounted": made - sum(recorded_calls(directory / name) for name in ("one", "two")),
        "calls": made,
    }


def main() -> None:
    """Run the benchmark and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=at_least(1), default=5)
    parser.add_argument("--episodes", type=at_least(1), default=256, help="of a round")
    parser.add_argument("--connections", type=at_least(1), default=64)
    parser.add_argument(
        "--output", type=Path, help="also write the JSON line, with date and hardware"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ajet-machines-") as directory:
        os.environ["XDG_STATE_HOME"] = directory
        result = asyncio.run(measure(args, Path(directory)))
    report(result, args.output)


if __name__ == "__main__":
    main()
