"""Benchmark how well the server finds the number of episodes that run at once.

Agents with tools roll out on an engine whose answers take the time of real replicas with a cache of
keys and values (`kv_engine`). With too few episodes the engine is idle while tools run. With too
many, the tokens of an episode have left the cache before its next turn and are computed again.

First, `rollout.concurrency` is fixed to each of several numbers; the best one is that with the most
episodes per second. Then it is ``auto``, for several seeds. The rates are those from the fourth
batch on. In the case ``lost``, one of two replicas is lost after the fourth batch, and the rates
are those from the eighth batch on. In the case ``vllm``, the engine is vLLM with a tiny model
(`make backends BACKENDS=vllm`), and nothing is trained.

    python benchmarks/concurrency.py
    python benchmarks/concurrency.py --case lost --seeds 3

The JSON line comes last; `--output` also writes it to a file, with date and hardware.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from load import Connection, reply_ids
from options import at_least
from reporting import report
from stub_processes import child

from agentjet import AsyncSwarmClient, RunConfig, Task
from ajet_core import credentials
from ajet_core.plugin import PluginManager
from ajet_core.plugin.discovery import installed_entry_points
from ajet_installation.settings import Settings
from ajet_server.serve import serve
from ajet_testing.plugins import entry_points_of
from ajet_testing.tokenizers import CORPUS, write_model
from ajet_worlds import load_world
from ajet_worlds.tiny_model import create_tiny_model

TASKS, EPISODES = 12, 8
BATCH = TASKS * EPISODES
ANSWER = 16
_ARGUMENTS = "AJET_BENCHMARK_VLLM_ARGUMENTS"
_VLLM_BLOCK = 128


@dataclass(frozen=True)
class Case:
    """A load.

    :param cache_tokens: of one replica.
    :param turns: fewest and most calls of an episode.
    :param words: fewest and most words of what a tool returns.
    :param tool_seconds: mean duration of a tool.
    :param lost_after: the batch after which a replica is lost.
    :param skip: batches that do not count.
    :param engine: ``kv_model`` or ``vllm``.
    """

    cache_tokens: int
    turns: tuple[int, int] = (6, 12)
    words: tuple[int, int] = (20, 60)
    tool_seconds: float = 0.2
    replicas: int = 1
    lost_after: int | None = None
    skip: int = 3
    engine: str = "kv_model"


CASES = {
    "cache": Case(20_000),
    "slow_tools": Case(20_000, tool_seconds=1.0),
    "long": Case(40_000, turns=(16, 32)),
    "vllm": Case(16_384, turns=(4, 8), engine="vllm"),
    "lost": Case(20_000, replicas=2, lost_after=4, skip=7),
}


@contextlib.contextmanager
def server(directory: Path, arguments: Sequence[str]) -> Iterator[str]:
    """Run a swarm server, and yield its URL.

    :param arguments: for servers of vLLM.
    """
    here = str(Path(__file__).resolve().parent)
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path, _ARGUMENTS: json.dumps(arguments)}
    with child([__file__, "--serve", str(directory)], env) as process:
        yield f"http://127.0.0.1:{process.port}"


def _serve(directory: Path) -> None:
    """Serve until the parent ends this process."""
    points = [
        *installed_entry_points(),
        *entry_points_of("scripted", "ajet_testing.hooks"),
        *entry_points_of("kv_model", "kv_engine"),
    ]
    settings = Settings(
        server={
            "run_dir": directory / "run",
            "model_roots": [directory],
            "port": 0,
            "max_waiting_claims": 2_000,
        },
        workers={"environments": Path(__file__).resolve().parents[1] / ".venvs"},
        servers={"vllm": {"arguments": json.loads(os.environ.get(_ARGUMENTS, "[]"))}},
    )
    serve(settings, PluginManager(entry_points=points))


def config(directory: Path, case: Case, concurrency: int | str) -> RunConfig:
    """Return the run's configuration."""
    settings: dict[str, Any] = {"replicas": case.replicas}
    trainer = "idle"
    if case.engine == "kv_model":
        trainer = "scripted"
        settings |= {
            "reply_ids": [*reply_ids()[: ANSWER - 1], reply_ids()[-1]],
            "chunk_tokens": ANSWER,
            "max_context": 16384,
            "cache_tokens": case.cache_tokens,
            "lost_at": case.lost_after,
        }
    return RunConfig.model_validate(
        {
            "model": {"path": str(directory / "model"), "renderer": "qwen3"},
            "engine": {"name": case.engine, "settings": settings},
            "trainer": {"name": trainer},
            "batch": {"tasks": TASKS, "episodes_per_task": EPISODES},
            "rollout": {
                "mode": "async",
                "max_staleness": 4,
                "max_mean_staleness": 2.0,
                "concurrency": concurrency,
            },
            "failures": {"pause_on": []},
        }
    )


async def _measure(
    url: str, directory: Path, case: Case, concurrency: int | str, batches: int, seed: int
) -> tuple[list[float], list[float]]:
    """Roll out, and return the episodes per second and the limit of each batch."""
    words = " ".join(CORPUS[:4]).split()
    ended: list[float] = []
    limits: list[float] = []
    tokens = credentials.find_local(url)
    assert tokens is not None
    port = int(url.rsplit(":", 1)[1])
    spare: list[Connection] = []
    numbers = itertools.count()

    async def agent(task: Task, episode: Any) -> float:
        of_task, rng = random.Random(f"{seed} {task.id}"), random.Random(f"{seed} {next(numbers)}")
        connection = spare.pop() if spare else await Connection.open(port)
        system = " ".join(of_task.choice(words) for _ in range(100))
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}]
        for _ in range(rng.randint(*case.turns)):
            returned = " ".join(rng.choice(words) for _ in range(rng.randint(*case.words)))
            messages.append({"role": "user", "content": returned})
            body = {"model": "m", "messages": messages, "max_tokens": ANSWER}
            answer, _ = await connection.post("/v1/chat/completions", episode.api_key, body)
            said = answer["choices"][0]["message"]["content"]
            messages.append({"role": "assistant", "content": said})
            await asyncio.sleep(rng.expovariate(1 / case.tool_seconds))
        spare.append(connection)
        return rng.random()

    async with AsyncSwarmClient(url, tokens.control) as client:
        await client.sync_train_config(config(directory, case, concurrency))
        await client.start_engine()
        began = time.monotonic()

        async def watch() -> None:
            while True:
                counters = (await client.status()).counters
                ended_now = len(ended)
                while len(limits) < ended_now // BATCH:
                    limits.append(counters.get("episode_limit", 0.0))
                await asyncio.sleep(0.25)

        watching = asyncio.create_task(watch())
        enough = asyncio.Event()

        def note(_: object) -> None:
            ended.append(time.monotonic() - began)
            if len(ended) >= BATCH * batches:
                enough.set()

        rolling = asyncio.create_task(
            client.run_episodes_until_all_complete(
                [Task(f"t{number}") for number in range(TASKS * (batches + 6))],
                agent,
                episodes_per_task=EPISODES,
                on_result=note,
            )
        )
        waiting = asyncio.create_task(enough.wait())
        await asyncio.wait([waiting, rolling], return_when=asyncio.FIRST_COMPLETED)
        if rolling.done():
            rolling.result()
        for task in (rolling, watching, waiting):
            task.cancel()
        await asyncio.gather(rolling, watching, waiting, return_exceptions=True)
        await client.stop_engine()
    times = [0.0, *ended[BATCH - 1 :: BATCH]][: batches + 1]
    return [BATCH / (b - a) for a, b in itertools.pairwise(times)], limits[:batches]


def measure(case: Case, concurrency: int | str, batches: int, seed: int) -> dict[str, Any]:
    """Run a server and measure one setting."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        arguments: list[str] = []
        if case.engine == "vllm":
            create_tiny_model(directory / "model", worlds=[load_world("grid")], seed=0)
            blocks = case.cache_tokens // _VLLM_BLOCK
            arguments = ["--num-gpu-blocks-override", str(blocks), "--block-size", str(_VLLM_BLOCK)]
        else:
            write_model(directory / "model", "qwen3")
            (directory / "model" / "model.safetensors").touch()
        with server(directory, arguments) as url:
            rates, limits = asyncio.run(_measure(url, directory, case, concurrency, batches, seed))
    return {
        "concurrency": concurrency,
        "seed": seed,
        "rate": round(statistics.mean(rates[case.skip :]), 3),
        "rates": [round(rate, 2) for rate in rates],
        "limits": limits,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--case", choices=CASES, default="cache")
    parser.add_argument("--seeds", type=at_least(1), default=5)
    parser.add_argument("--fixed", type=at_least(1), nargs="+", default=None)
    parser.add_argument("--batches", type=at_least(1), default=5, help="that count")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        _serve(options.serve)
        return
    case = CASES[options.case]
    fixed = options.fixed or [12, 16, 20, 24, 32, 40, 48, 64, 96]
    results = []
    for number in fixed:
        results.append(measure(case, number, case.skip + options.batches, 0))
        print(json.dumps(results[-1]), flush=True)
    best = max(results, key=lambda one: one["rate"])
    # The rate of the best one for another seed is not the largest of several.
    again = measure(case, best["concurrency"], case.skip + options.batches, 1)
    print(json.dumps(again), flush=True)
    rate = statistics.mean([best["rate"], again["rate"]])
    auto = []
    for seed in range(options.seeds):
        auto.append(measure(case, "auto", case.skip + options.batches, seed))
        print(json.dumps(auto[-1]), flush=True)
    shares = [one["rate"] / rate for one in auto]
    result = {
        "benchmark": "concurrency",
        "case": options.case,
        "load": asdict(case),
        "best_fixed": best["concurrency"],
        "best_rate": round(rate, 3),
        "auto_of_best": [round(share, 3) for share in shares],
        "auto_of_best_mean": round(statistics.mean(shares), 3),
        "auto_of_best_worst": round(min(shares), 3),
        "fixed": results,
        "auto": auto,
    }
    report(result, options.output)


if __name__ == "__main__":
    main()
