"""Benchmark what each fast path of the gateway saves, in CPU time of a call.

One gateway has all of them, and one each is without one of them. They take turns with the requests
of `gateway`, in many short rounds, so that other load of the machine affects all alike. A figure is
the CPU time of the gateway without the fast path over that of the one with all, of each round:
median, lower and upper quartile.

The JSON line comes last; `--output` also writes it to a file, with date and hardware.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args

from gateway import Measured, round_of, started
from options import at_least
from reporting import report
from stub_processes import gateway

from ajet_installation.settings import FastPath
from ajet_testing.tokenizers import write_model

NAMES = get_args(FastPath)
_VARIABLE = "AJET_SERVER__FAST_PATHS"


async def measure(rounds: int, episodes: int, directory: Path) -> dict[str, Any]:
    """Run all rounds, and return the figures."""
    model = write_model(directory / "models" / "tiny", "qwen3")
    (model / "model.safetensors").write_bytes(b"")
    measured: dict[str, list[Measured]] = {name: [] for name in ("none", *NAMES)}
    with ExitStack() as stack:
        servers = {}
        for off in measured:
            os.environ[_VARIABLE] = json.dumps([name for name in NAMES if name != off])
            server = stack.enter_context(gateway(directory / f"run-{off}", model))
            servers[off] = server, await started(server, model)
            await round_of(*servers[off], 16, 16, seed=1, group=1)
        for number in range(rounds):
            # Each is first as often as the others.
            turn = number % len(servers)
            for off in [*servers, *servers][turn : turn + len(servers)]:
                seed = 100 + number
                found = await round_of(*servers[off], episodes, episodes, seed, group=1)
                measured[off].append(found)
    with_all = measured.pop("none")
    figures: dict[str, Any] = {
        "benchmark": "fast_paths",
        "cpu_us_per_call": round(statistics.median(m.cpu / m.calls for m in with_all) * 1e6, 1),
    }
    for off, without in measured.items():
        ratios = [m.cpu / base.cpu for m, base in zip(without, with_all, strict=True)]
        lower, median, upper = statistics.quantiles(ratios, n=4)
        figures[f"without_{off}"] = [round(one, 3) for one in (median, lower, upper)]
    return figures


def main() -> None:
    """Run the benchmark and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=at_least(2), default=40)
    parser.add_argument("--episodes", type=at_least(1), default=8, help="of a round")
    parser.add_argument(
        "--output", type=Path, help="also write the JSON line, with date and hardware"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ajet-fast-paths-") as directory:
        os.environ["XDG_STATE_HOME"] = directory
        result = asyncio.run(measure(args.rounds, args.episodes, Path(directory)))
    report(result, args.output)


if __name__ == "__main__":
    main()
