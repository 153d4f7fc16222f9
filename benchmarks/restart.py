"""Measure how soon a client that was stopped works again: `restart.py --rounds 10`.

A real server trains a tiny model that plays GridWalk. In each round a client's process rolls out
episodes until it is stopped with episodes in progress, by SIGINT (Ctrl-C) and by SIGKILL in turn.
A developer would now change the code. The process that replaces it, of the same command, is timed
from its start: until it has its first episode (`restart_*_s`), and its first reported reward
(`result_*_s`), the model's answers included. Then a client whose agent has a defect is started in
the same way: `traceback_s` is the time until the line of the defect is on its standard error.

Lists have a value for each round. The JSON line comes last; `--output` also writes it to a file,
with date and hardware.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from options import at_least
from reporting import report

from agentjet import LocalServer
from ajet_demo.orchestrate import terminate_as_interrupt
from ajet_worlds import load_world
from ajet_worlds.recipe import run_config
from ajet_worlds.tiny_model import create_tiny_model

ROOT = Path(__file__).resolve().parents[1]
WORLD = "grid"
CLAIMED, REPORTED = "claimed", "reported"
DEFECT = "a_name_that_was_never_defined"
PATIENCE = 300.0


async def roll_out(url: str, first_task: int, *, defect: bool) -> None:
    """Roll out episodes as a client does, and print the first ones."""
    from agentjet.client import AsyncSwarmClient, Episode, EpisodeFailure, EpisodeOutcome, Task
    from ajet_worlds.agent import WorldAgent

    world = load_world(WORLD)
    said = set[str]()

    def say(word: str) -> None:
        if word not in said:
            said.add(word)
            print(word, flush=True)

    async with (
        AsyncSwarmClient(url, os.environ["AJET_TOKEN"]) as client,
        WorldAgent(world) as agent,
    ):

        async def play(task: Task, episode: Episode) -> EpisodeOutcome:
            say(CLAIMED)
            if defect:
                raise NameError(DEFECT)
            return await agent(task, episode)

        def note(result: object) -> None:
            if isinstance(result, EpisodeFailure):
                raise RuntimeError("the agent failed") from result.error
            say(REPORTED)

        await client.run_episodes_until_all_complete(
            world.task_ids("train", 0, 10_000, start=first_task),
            play,
            episodes_per_task=world.recipe.batch.episodes_per_task,
            concurrency=world.recipe.batch.episodes,
            on_result=note,
        )


class Process:
    """A client's process."""

    def __init__(self, server: LocalServer, number: int, *, defect: bool = False) -> None:
        command = [sys.executable, __file__, "--client", server.client.url, str(number * 10_000)]
        self.started = time.monotonic()
        self._process = subprocess.Popen(
            [*command, "--defect"] if defect else command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "AJET_TOKEN": server.client_token},
        )

    def seconds_until(self, word: str) -> float:
        """Return the seconds from its start until it prints a line with a word."""
        assert self._process.stdout is not None
        lines = []
        for line in self._process.stdout:
            lines.append(line)
            if word in line:
                return time.monotonic() - self.started
        raise RuntimeError(f"the client ended:\n{''.join(lines[-30:])}")

    def end(self, signum: signal.Signals) -> None:
        """Stop it, and wait for its end."""
        self._process.send_signal(signum)
        try:
            self._process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise


@contextmanager
def ended(process: Process) -> Iterator[Process]:
    """Kill a process at the end of a block."""
    try:
        yield process
    finally:
        process.end(signal.SIGKILL)


def measure(rounds: int, directory: Path) -> dict[str, list[float]]:
    """Return all figures."""
    world = load_world(WORLD)
    create_tiny_model(directory / "model", worlds=[world], seed=0)
    config = run_config(world, directory / "model")
    # Clients with a defect would pause the run.
    failures = config.failures.model_copy(update={"max_rate": 1.0})
    config = config.model_copy(update={"failures": failures})
    figures: dict[str, list[float]] = {}
    numbers = iter(range(1, 10**6))

    def timed(name: str, process: Process, word: str) -> None:
        figures.setdefault(name, []).append(round(process.seconds_until(word), 3))

    with LocalServer(directory) as server:
        server.start_run(config)

        def start(*, defect: bool = False) -> Process:
            return Process(server, next(numbers), defect=defect)

        for _ in range(rounds):
            for name, signum in (("stopped", signal.SIGINT), ("killed", signal.SIGKILL)):
                before = start()
                before.seconds_until(REPORTED)
                before.end(signum)
                with ended(start()) as after:
                    timed(f"restart_{name}_s", after, CLAIMED)
                    timed(f"result_{name}_s", after, REPORTED)
            with ended(start(defect=True)) as broken:
                timed("traceback_s", broken, DEFECT)
        server.stop_run()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=at_least(1), default=10)
    parser.add_argument("--output", type=Path, help="also write the result to this file")
    parser.add_argument("--client", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--defect", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client is not None:
        url, first_task = options.client
        # Shells start background jobs with SIGINT ignored, and processes inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        asyncio.run(roll_out(url, int(first_task), defect=options.defect))
        return
    # Environments of engines and trainers are searched for above the run directory.
    (ROOT / "runs").mkdir(exist_ok=True)
    with (
        terminate_as_interrupt(),
        tempfile.TemporaryDirectory(prefix="restart-", dir=ROOT / "runs") as directory,
    ):
        figures = measure(options.rounds, Path(directory))
    report({"benchmark": "restart", "rounds": options.rounds, **figures}, options.output)


if __name__ == "__main__":
    main()
