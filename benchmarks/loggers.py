"""Benchmark what metrics loggers add to a run: the time and the CPU time of its steps.

Several servers with scripted engine and trainer take turns, in short rounds of a few steps, so that
other load of the machine affects all alike. `off` has no logger at all, not even `jsonl`, which
cannot be turned off otherwise. `same` has none either: how far from 1 a figure is by chance. The
others have `jsonl` and the named logger. A figure is the ratio to `off` of the same round: median,
lower and upper quartile. `step` is the time from the first claim of a batch to its trained step.
`cpu` is the CPU time of this process, in which the server, its loggers' threads and the client are,
up to the moment at which the loggers have written the round's steps. Steps of scripted components
take little time, so those of a real model have a smaller share of loggers; `logger_ms_per_step` is
the absolute figure.

The JSON line comes last; `--output` also writes it to a file, with date and hardware.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from options import at_least
from reporting import report

from ajet_testing.servers import Running, ServerFactory, write_scripted_model

# With settings that need no account and no network.
_LOGGERS: dict[str, dict[str, Any]] = {
    "tensorboard": {},
    "mlflow": {},
    "trackio": {},
    "wandb": {"mode": "offline"},
}
_WITHOUT = ("off", "same")


class LoggedRound(NamedTuple):
    """What a server did in a round.

    :param step: seconds of a step.
    :param cpu: CPU seconds of a step.
    """

    step: float
    cpu: float


@contextlib.contextmanager
def unlogged(server: Running) -> Iterator[None]:
    """Let a server log nothing."""
    loggers = server.service.loggers
    threads, loggers._threads = loggers._threads, []
    try:
        yield
    finally:
        loggers._threads = threads


async def round_of(server: Running, steps: int) -> LoggedRound:
    """Train `steps` steps, and wait until they are logged."""
    started, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        await server.batch()
    passed = time.perf_counter() - started
    await server.service.loggers.settled()
    return LoggedRound(passed / steps, (time.process_time() - cpu) / steps)


async def measure(rounds: int, steps: int, names: list[str], directory: Path) -> dict[str, Any]:
    """Run all rounds, and return the figures."""
    model = write_scripted_model(directory / "models" / "model")
    measured: dict[str, list[LoggedRound]] = {name: [] for name in [*_WITHOUT, "jsonl", *names]}
    async with contextlib.AsyncExitStack() as stack:
        servers = {}
        for name in measured:
            factory = ServerFactory(model, directory / name)
            loggers = {name: _LOGGERS[name]} if name in _LOGGERS else {}
            server = await stack.enter_async_context(factory.running(loggers=loggers))
            if name in _WITHOUT:
                stack.enter_context(unlogged(server))
            await server.roll()
            await round_of(server, 2)
            servers[name] = server
        for number in range(rounds):
            # Each is first as often as the others.
            turn = number % len(servers)
            for name in [*servers, *servers][turn : turn + len(servers)]:
                measured[name].append(await round_of(servers[name], steps))
    off = measured.pop("off")
    cpu = statistics.median(one.cpu for one in off)
    return {
        "benchmark": "loggers",
        "rounds": rounds,
        "steps": rounds * steps,
        "step_ms": round(statistics.median(one.step for one in off) * 1e3, 2),
        "cpu_ms_per_step": round(cpu * 1e3, 2),
        **{name: compared(figures, off) for name, figures in measured.items()},
    }


def compared(ours: list[LoggedRound], base: list[LoggedRound]) -> dict[str, Any]:
    """Return the figures of one server's rounds over those of the one that logs nothing."""
    pairs = list(zip(ours, base, strict=True))
    added = statistics.median([mine.cpu - other.cpu for mine, other in pairs])
    return {
        "step": quartiles([mine.step / other.step for mine, other in pairs]),
        "cpu": quartiles([mine.cpu / other.cpu for mine, other in pairs]),
        "logger_ms_per_step": round(added * 1e3, 3),
    }


def quartiles(ratios: list[float]) -> list[float]:
    """Return median, lower and upper quartile."""
    lower, median, upper = statistics.quantiles(ratios, n=4)
    return [round(one, 3) for one in (median, lower, upper)]


def main() -> None:
    """Run the benchmark and print the result."""
    installed = [name for name in _LOGGERS if find_spec(f"ajet_loggers_{name}") and find_spec(name)]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=at_least(2), default=40)
    parser.add_argument("--steps", type=at_least(1), default=5, help="of a round")
    parser.add_argument(
        "--loggers",
        nargs="*",
        choices=_LOGGERS,
        default=installed,
        help="beside jsonl; default: those that are installed",
    )
    parser.add_argument(
        "--output", type=Path, help="also write the JSON line, with date and hardware"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ajet-loggers-") as directory:
        os.environ["XDG_STATE_HOME"] = directory
        result = asyncio.run(measure(args.rounds, args.steps, args.loggers, Path(directory)))
    report(result, args.output)


if __name__ == "__main__":
    main()
