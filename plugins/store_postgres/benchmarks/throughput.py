"""Calls that a store commits in a second: PostgreSQL beside SQLite, with the same writers.

Each writer is an agent: it claims an episode, records its calls one after the other, each a
continuation of the one before, and ends the episode. All is durable before the next write. The
stores take turns, several times, on the same disk. PostgreSQL is a server of its own, with its
default settings, on a Unix socket.

``python benchmarks/throughput.py [--writers 1,16,100] [--seconds 4] [--rounds 3]`` prints a table,
and one JSON line last.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

from ajet_core.interfaces import SampleStore, WorkerContext
from ajet_server.embedded.settings import SqliteStoreSettings
from ajet_server.store.sqlite_store import SqliteStore
from ajet_store_postgres.settings import PostgresStoreSettings
from ajet_store_postgres.store import PostgresStore
from ajet_testing.suites.samples import conversation, make_episode
from ajet_testing.suites.store_suite import ended

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from postgres_server import PostgresServer  # noqa: E402

TURNS = 8


async def measure(store: SampleStore, writers: int, seconds: float) -> tuple[float, float]:
    """Return the calls committed in a second, and the CPU time of this process for each, in us."""
    await store.open()
    calls = 0
    until = time.monotonic() + seconds
    cpu = _cpu()
    began = time.monotonic()

    async def write(number: int) -> None:
        nonlocal calls
        turn = 0
        while time.monotonic() < until:
            name = f"{number}-{turn}"
            turn += 1
            await store.append(make_episode(name))
            for call in conversation(TURNS, episode_id=name):
                await store.append(call)
                calls += 1
            await store.append(ended(name))

    await asyncio.gather(*map(write, range(writers)))
    took, used = time.monotonic() - began, _cpu() - cpu
    await store.close()
    return calls / took, used / calls * 1e6


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--writers", default="1,16,100")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows = []
    print(f"{'writers':>8} {'sqlite/s':>10} {'postgres/s':>11} {'ratio':>6} {'us':>6} {'us':>6}")
    with PostgresServer() as server, tempfile.TemporaryDirectory() as place:
        server.start()
        for writers in map(int, options.writers.split(",")):
            rounds: dict[str, list[tuple[float, float]]] = {"sqlite": [], "postgres": []}
            for number in range(options.rounds):
                context = WorkerContext(Path(place) / f"run-{writers}-{number}")
                stores: dict[str, SampleStore] = {
                    "sqlite": SqliteStore(SqliteStoreSettings(), context),
                    "postgres": PostgresStore(PostgresStoreSettings(dsn=server.dsn), context),
                }
                for name, store in stores.items():
                    rounds[name].append(
                        asyncio.run(measure(store, writers, options.seconds))
                    )
            ratios = [p[0] / s[0] for p, s in zip(rounds["postgres"], rounds["sqlite"], strict=True)]
            row = {
                "writers": writers,
                **{f"{n}_calls_per_s": round(statistics.median(r[0] for r in found))
                   for n, found in rounds.items()},
                **{f"{n}_us_cpu": round(statistics.median(r[1] for r in found))
                   for n, found in rounds.items()},
                "ratio": round(statistics.median(ratios), 3),
                "ratios": [round(ratio, 3) for ratio in ratios],
            }
            rows.append(row)
            print(
                f"{writers:>8} {row['sqlite_calls_per_s']:>10} {row['postgres_calls_per_s']:>11} "
                f"{row['ratio']:>6} {row['sqlite_us_cpu']:>6} {row['postgres_us_cpu']:>6}"
            )
    print(json.dumps({"benchmark": "stores", "turns": TURNS, "rows": rows}))


if __name__ == "__main__":
    main()
