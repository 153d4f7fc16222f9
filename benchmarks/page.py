"""Benchmark the live page: how fast it is with a long run, and what many viewers cost rollouts.

A store with many steps, episodes and calls is written and opened by a server. `first_paint_ms` and
`drawn_ms` are a browser's: until something is painted, and until the curves are drawn, after the
page was requested. Then rounds of rollouts on another server, with the scripted engine, alternate
between no viewers and viewers that request what an open page does. `cpu_per_call_ratio` is the
server's CPU time of a call with viewers over that without: on a machine with few cores, the
viewers' own CPU time also slows the rollouts down, which `throughput_ratio` includes.

The JSON line comes last; `--output` also writes it to a file, with date and hardware.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
from load import quantile
from options import at_least
from processes import Round, Server
from reporting import report
from stub_processes import gateway

from ajet_core import credentials
from ajet_core.interfaces import BatchRecord, EpisodeRecord, RunRecord, StepRecord, WorkerContext
from ajet_core.protocol import ModelConfig, RunConfig
from ajet_core.timeline import Call
from ajet_server.embedded.settings import SqliteStoreSettings
from ajet_server.store.sqlite_store import SqliteStore
from ajet_testing.tokenizers import write_model
from tests.support.browser import headless_browser

METRICS = 40
CALLS_PER_EPISODE = 50
POLL_SECONDS = 5.0


async def fill(run_dir: Path, model: Path, steps: int, calls: int) -> None:
    """Write a run to a store."""
    store = SqliteStore(SqliteStoreSettings(), WorkerContext(run_dir))
    await store.open()
    config = RunConfig(model=ModelConfig(path=str(model), renderer="qwen3"))
    await store.append(RunRecord("long", config.model_dump_json(), 1.7e9))
    episodes = calls // CALLS_PER_EPISODE
    each = max(1, episodes // steps)
    ids: list[str] = []
    for number in range(episodes):
        await store.append(*episode(f"ep-{number:07}"))
        ids.append(f"ep-{number:07}")
    rng = random.Random(1)
    for step in range(1, steps + 1):
        batch = f"batch-{step}"
        chosen = ids[(step - 1) * each : step * each]
        metrics = {f"metric_{i}": rng.random() for i in range(METRICS)}
        metrics |= {"reward_mean": step / steps, "loss": rng.random(), "entropy": rng.random()}
        await store.append(
            BatchRecord(batch, step, chosen, 1.7e9),
            StepRecord(step, batch, metrics, 1.7e9 + 60 * step),
        )
    await store.close()


def episode(episode_id: str) -> list[Any]:
    """Return the records of an ended episode and its calls."""
    record = EpisodeRecord(
        episode_id, episode_id, "task", "task", "train", "", "client", 0, 60.0, 1.7e9
    )
    calls = [
        Call(
            call_id=f"{episode_id}-{index}",
            episode_id=episode_id,
            index=index,
            suffix_ids=[1, 2, 3, 4],
            sampled_ids=[5, 6, 7, 8],
            logprobs=[-1.0] * 4,
            policy_versions=[0] * 4,
            temperature=1.0,
            finish_reason="stop",
        )
        for index in range(CALLS_PER_EPISODE)
    ]
    ended = replace(record, state="ended", reward=0.5, finished_at=1.7e9 + 1)
    return [record, *calls, ended]


async def paint(port: int, control: str, repeats: int) -> dict[str, float]:
    """Open the page in a browser, and return medians in milliseconds."""
    paints, drawn = [], []
    url = f"http://127.0.0.1:{port}"
    async with headless_browser() as browser:
        for _ in range(repeats):
            context = await browser.new_context()
            page = await context.new_page()
            await page.goto(f"{url}/ui/#token={control}")
            await page.locator("canvas").first.wait_for()
            times = await page.evaluate(
                "[performance.getEntriesByName('first-contentful-paint')[0].startTime,"
                " performance.now()]"
            )
            paints.append(times[0])
            drawn.append(times[1])
            await context.close()
    return {
        "first_paint_ms": round(statistics.median(paints), 1),
        "drawn_ms": round(statistics.median(drawn), 1),
        "drawn_worst_ms": round(max(drawn), 1),
    }


async def watch(url: str, token: str, seed: int) -> None:
    """Request what an open page does, until cancelled."""
    rng, known = random.Random(seed), None
    headers = {"authorization": f"Bearer {token}"}
    # No context of TLS for each: the server has none.
    async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=30, verify=False) as http:
        await asyncio.sleep(rng.random() * POLL_SECONDS)
        while True:
            overview = (await http.get("/v1/overview")).raise_for_status().json()
            if overview["status"]["step"] != known:
                known = overview["status"]["step"]
                (await http.get("/v1/steps", params={"points": 300})).raise_for_status()
            await asyncio.sleep(overview["again_seconds"] * (0.9 + 0.2 * rng.random()))


async def watch_all(url: str, token: str, count: int) -> None:
    """Run all viewers, in this process."""
    await asyncio.gather(*(watch(url, token, seed) for seed in range(count)))


@contextlib.asynccontextmanager
async def viewers(url: str, token: str, count: int) -> AsyncIterator[None]:
    """Run viewers in a process of their own."""
    command = [sys.executable, __file__, "--watch", url, str(count)]
    process = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, "AJET_TOKEN": token}
    )
    try:
        # Until they ask as often as the server says.
        await asyncio.sleep(6 * POLL_SECONDS)
        yield
        assert process.returncode is None, "the viewers failed"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def measure(args: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Run everything, and return the figures."""
    model = write_model(directory / "models" / "tiny", "qwen3")
    (model / "model.safetensors").write_bytes(b"")
    long = directory / "long"
    long.mkdir()
    began = time.perf_counter()
    await fill(long, model, args.steps, args.calls)
    print(f"wrote {args.calls} calls in {time.perf_counter() - began:.0f} s", file=sys.stderr)
    with gateway(long, model) as child:
        tokens = credentials.find_local(f"http://127.0.0.1:{child.port}")
        assert tokens is not None
        figures: dict[str, Any] = await paint(child.port, tokens.control, args.repeats)
    alone: list[Round] = []
    watched: list[Round] = []
    with gateway(directory / "run", model) as child:
        server = Server(child, 1)
        await server.start(model)
        tokens = credentials.find_local(f"http://127.0.0.1:{child.port}")
        assert tokens is not None
        await server.round(16, 32, 0)
        for seed in range(1, args.rounds + 1):
            alone.append(await server.round(args.connections, args.episodes, seed))
            url = f"http://127.0.0.1:{child.port}"
            async with viewers(url, tokens.control, args.viewers):
                watched.append(await server.round(args.connections, args.episodes, seed))

    def cpu(of: Round) -> float:
        return of.micros(of.cpu[0])

    def rate(of: Round) -> float:
        return len(of.latencies) / of.seconds

    pairs = list(zip(watched, alone, strict=True))
    return {
        "benchmark": "page",
        "steps": args.steps,
        "calls": args.calls,
        **figures,
        "viewers": args.viewers,
        "cpu_per_call_ratio": round(statistics.median(cpu(w) / cpu(a) for w, a in pairs), 3),
        "throughput_ratio": round(statistics.median(rate(w) / rate(a) for w, a in pairs), 3),
        "p99_ms_alone": round(
            1000 * statistics.median(quantile(r.latencies, 0.99) for r in alone), 1
        ),
        "p99_ms_watched": round(
            1000 * statistics.median(quantile(r.latencies, 0.99) for r in watched), 1
        ),
        "calls_per_second": round(statistics.median(map(rate, alone)), 1),
    }


def main() -> None:
    """Run the benchmark and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=at_least(1), default=10_000)
    parser.add_argument("--calls", type=at_least(1), default=1_000_000, help="of the long run")
    parser.add_argument("--viewers", type=at_least(1), default=200)
    parser.add_argument("--repeats", type=at_least(1), default=5, help="how often it is opened")
    parser.add_argument("--rounds", type=at_least(1), default=5)
    parser.add_argument("--episodes", type=at_least(1), default=1536, help="of a round")
    parser.add_argument("--connections", type=at_least(1), default=64)
    parser.add_argument("--watch", nargs=2, metavar=("URL", "COUNT"), help=argparse.SUPPRESS)
    parser.add_argument(
        "--output", type=Path, help="also write the JSON line, with date and hardware"
    )
    args = parser.parse_args()
    if args.watch:
        url, count = args.watch
        asyncio.run(watch_all(url, os.environ["AJET_TOKEN"], int(count)))
        return
    with tempfile.TemporaryDirectory(prefix="ajet-page-") as directory:
        os.environ["XDG_STATE_HOME"] = directory
        result = asyncio.run(measure(args, Path(directory)))
    report(result, args.output)


if __name__ == "__main__":
    main()
