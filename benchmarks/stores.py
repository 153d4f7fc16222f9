"""Calls that a store commits in a second: PostgreSQL beside SQLite, with the same writers.

Each writer is an agent: it claims an episode, records its calls one after the other, each a
continuation of the one before, and ends the episode. All is durable before the next write. The
stores take turns, several times, on the same disk. PostgreSQL is a server of its own, with its
default settings, on a Unix socket. A ratio is that of two measurements of one round. The load is
the machine's average before a row: on a machine that others use, compare ratios alone.

``python benchmarks/stores.py [--writers 1,16,100] [--seconds 4] [--rounds 3] [--output FILE]``
prints a table, and one JSON line last.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psycopg
from ajet_store_postgres.settings import PostgresStoreSettings
from ajet_store_postgres.store import PostgresStore

from ajet_core.interfaces import SampleStore, WorkerContext
from ajet_server.embedded.settings import SqliteStoreSettings
from ajet_server.store.sqlite_store import SqliteStore
from ajet_testing.suites.samples import conversation, make_episode
from ajet_testing.suites.store_suite import ended

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins/store_postgres/tests"))
from postgres_server import PostgresServer
from reporting import report

TURNS = 8


class Measured(NamedTuple):
    """What one store did in one round.

    :param calls_per_s: calls committed in a second.
    :param us_cpu: CPU time of this process for each call, in microseconds.
    :param bytes_per_call: of the disk, with the share of its episode and of indices.
    """

    calls_per_s: float
    us_cpu: float
    bytes_per_call: float


async def measure(
    store: SampleStore, writers: int, seconds: float, size: Callable[[], int]
) -> Measured:
    """Let writers write for some seconds.

    :param size: returns the bytes that the closed store takes.
    """
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
    return Measured(calls / took, used / calls * 1e6, size() / calls)


def sqlite_bytes(run_dir: Path) -> int:
    """Return the size of a run's database with its log."""
    return sum(file.stat().st_size for file in run_dir.glob("samples.sqlite3*"))


def postgres_bytes(run_dir: Path, dsn: str) -> int:
    """Return the size of the tables of a run with their indices."""
    schema = json.loads((run_dir / "postgres.json").read_text())["schema"]
    with psycopg.connect(dsn) as connection:
        (row,) = connection.execute(
            "SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relkind = 'r'",
            (schema,),
        )
    return int(row[0])


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--writers", default="1,16,100")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rows = []
    calls = conversation(TURNS)
    sizes = {
        "turns": TURNS,
        "prompt_tokens": sum(len(call.prompt_ids) for call in calls) / TURNS,
        "sampled_tokens": sum(len(call.sampled_ids) for call in calls) / TURNS,
    }
    print(f"cores: {os.cpu_count()}, of an episode and its calls: {sizes}")
    print(
        f"{'writers':>8} {'load':>6} {'sqlite/s':>10} {'postgres/s':>11} {'ratio':>6} "
        f"{'us':>6} {'us':>6} {'bytes':>6} {'bytes':>6}"
    )
    with PostgresServer() as server, tempfile.TemporaryDirectory() as place:
        server.start()
        for writers in map(int, options.writers.split(",")):
            rounds: dict[str, list[Measured]] = {"sqlite": [], "postgres": []}
            load = os.getloadavg()[0]
            for number in range(options.rounds):
                context = WorkerContext(Path(place) / f"run-{writers}-{number}")
                run_dir = context.run_dir
                stores: dict[str, tuple[SampleStore, Callable[[], int]]] = {
                    "sqlite": (
                        SqliteStore(SqliteStoreSettings(), context),
                        partial(sqlite_bytes, run_dir),
                    ),
                    "postgres": (
                        PostgresStore(PostgresStoreSettings(dsn=server.dsn), context),
                        partial(postgres_bytes, run_dir, server.dsn),
                    ),
                }
                for name, (store, size) in stores.items():
                    done = asyncio.run(measure(store, writers, options.seconds, size))
                    rounds[name].append(done)
            pairs = zip(rounds["postgres"], rounds["sqlite"], strict=True)
            ratios = [postgres.calls_per_s / sqlite.calls_per_s for postgres, sqlite in pairs]
            row = {
                "writers": writers,
                "load": round(load, 2),
                **{
                    f"{name}_{field}": round(statistics.median(getattr(m, field) for m in each))
                    for field in Measured._fields
                    for name, each in rounds.items()
                },
                "ratio": round(statistics.median(ratios), 3),
                "ratios": [round(ratio, 3) for ratio in ratios],
            }
            rows.append(row)
            print(
                f"{writers:>8} {row['load']:>6} {row['sqlite_calls_per_s']:>10} "
                f"{row['postgres_calls_per_s']:>11} {row['ratio']:>6} "
                f"{row['sqlite_us_cpu']:>6} {row['postgres_us_cpu']:>6} "
                f"{row['sqlite_bytes_per_call']:>6} {row['postgres_bytes_per_call']:>6}"
            )
    report({"benchmark": "stores", **sizes, "cores": os.cpu_count(), "rows": rows}, options.output)


if __name__ == "__main__":
    main()
