"""What the launcher of `ajet exec` adds to an episode: wall and CPU seconds, JSON last.

An episode is a working copy of 100 files and two sandboxes, that of the program with an endpoint.
Program and reward are ``true``, so that what is measured is the launcher and the sandboxes.

With ``--whole``, it is an episode of a server in another process, from its claim to its end, with
heartbeats: the program is a shell that makes one call, of which the engine has a scripted answer,
and the reward is a shell that reads it. The CPU seconds are those of the launcher, the client and
the sandboxes; those of the server are apart.

With AT_ONCE, as many episodes begin at the same moment, in as many rounds as EPISODES needs, and
the seconds are those of an episode among the others.

    python benchmarks/exec.py [EPISODES] [SANDBOX] [AT_ONCE] [--whole] [--output FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from reporting import report

from agentjet import AsyncSwarmClient, Task
from ajet_core.interfaces import BoxProgram, Sandbox
from ajet_exec import BoxedProgram, ProgramTerms, load_sandbox
from ajet_exec.endpoint import relay
from ajet_exec.workshop import Workshop
from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm

GOAL_SECONDS = 0.2
GOAL_CPU_SECONDS = 0.1
ASK = r"""
place=${OPENAI_BASE_URL#http://}; place=${place%%/*}
body='{"model": "any", "max_tokens": 8, "messages": [{"role": "user", "content": "Write 42"}]}'
exec 3<> "/dev/tcp/${place%:*}/${place#*:}"
printf 'POST /v1/chat/completions HTTP/1.1\r\nhost: box\r\nconnection: close\r\n' >&3
printf 'authorization: Bearer %s\r\ncontent-type: application/json\r\n' "$OPENAI_API_KEY" >&3
printf 'content-length: %d\r\n\r\n%s' "${#body}" "$body" >&3
cat <&3 > answer.txt
"""
GRADE = "case $(cat answer.txt) in *'\"42\"'*) echo 1;; *) echo 0;; esac"


def cpu() -> float:
    """CPU seconds of this process and of its children that have ended."""
    own, children = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


async def episode(sandbox: Sandbox, workshop: Workshop) -> None:
    """Do what the launcher does for an episode, with a program and a reward that do nothing."""
    async with workshop.episode() as directory:
        for name, endpoints in (
            ("agent", {8642: relay("http://127.0.0.1:8642/v1")}),
            ("grade", {}),
        ):
            program = BoxProgram(
                argv=("true",),
                environ={"PATH": os.environ["PATH"]},
                work=directory / "work",
                stdout=directory / f"{name}.out",
                stderr=directory / f"{name}.err",
                endpoints=endpoints,
            )
            ended = await sandbox.run(program, timeout=60.0)
            assert ended.status == 0


async def measured(
    count: int, at_once: int, some: Callable[[int], Awaitable[list[float]]]
) -> dict[str, float]:
    """Run episodes in rounds.

    :param some: runs so many at once, and returns the seconds of each.
    """
    await some(1)
    seconds: list[float] = []
    used: list[float] = []
    began = time.perf_counter()
    for first in range(0, count, at_once):
        number, before = min(at_once, count - first), cpu()
        seconds += await some(number)
        used.append((cpu() - before) / number)
    whole = time.perf_counter() - began
    return {
        "episodes_per_second": round(count / whole, 2),
        "seconds_most": round(max(seconds), 4),
        "seconds_median": round(statistics.median(seconds), 4),
        "cpu_seconds_median": round(statistics.median(used), 4),
    }


def sandboxes(name: str, files: Path, base: Path, count: int, at_once: int) -> dict[str, float]:
    """Measure the sandboxes and the working copies alone."""
    sandbox = load_sandbox(name)
    workshop = Workshop(files, base=base)
    workshop.open()

    async def timed() -> float:
        began = time.perf_counter()
        await episode(sandbox, workshop)
        return time.perf_counter() - began

    async def some(number: int) -> list[float]:
        return await asyncio.gather(*(timed() for _ in range(number)))

    figures = asyncio.run(measured(count, at_once, some))
    left = len(list(base.rglob("work")))
    workshop.close()
    return {**figures, "directories_left": left}


def whole_episodes(
    name: str, files: Path, base: Path, count: int, at_once: int
) -> dict[str, float]:
    """Measure episodes of `BoxedProgram` from their claim to their end."""
    command = [sys.executable, __file__, "--serve", str(base.parent / "swarm")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        url, token = json.loads(server.stdout.readline())
        terms = ProgramTerms(
            argv=("bash", "-c", ASK), reward=("sh", "-c", GRADE), files=files, timeout=600.0
        )
        figures = asyncio.run(rolled_out(url, token, terms, name, base, count, at_once))
        left = len(list(base.rglob("work")))
        ended = json.loads(server.communicate("")[0])
    seconds = ended["seconds"][1:]
    return {
        **figures,
        "seconds_most": round(max(seconds), 4),
        "seconds_median": round(statistics.median(seconds), 4),
        "server_cpu_seconds": round(ended["cpu_seconds"] / (count + 1), 4),
        "directories_left": left,
    }


async def rolled_out(
    url: str, token: str, terms: ProgramTerms, name: str, base: Path, count: int, at_once: int
) -> dict[str, float]:
    """Measure the episodes of a server."""
    async with (
        AsyncSwarmClient(url, token) as client,
        BoxedProgram(terms, load_sandbox(name), client, base=base) as boxed,
    ):

        async def some(number: int) -> list[float]:
            began = time.perf_counter()
            done = await client.run_episodes_until_all_complete(
                [Task(f"{began}-{i}") for i in range(number)],
                boxed.agent,
                episodes_per_task=1,
                concurrency=number,
                retries=0,
                kind="eval",
            )
            assert not done.failures, done
            assert all(ended.outcome.reward == 1.0 for ended in done.outcomes)
            return [(time.perf_counter() - began) / number] * number

        return await measured(count, at_once, some)


def serve(directory: Path) -> None:
    """Serve until stdin ends; print the URL and the token first, and figures last."""
    replies = (ScriptedReply(prompt="", says=("42<|im_end|>",)),)
    with ScriptedSwarm(directory, replies) as swarm:
        print(json.dumps([swarm.url, swarm.token]), flush=True)
        before = cpu()
        sys.stdin.read()
        used = cpu() - before
        records = sorted(swarm.episodes(), key=lambda record: record.created_at)
        seconds = [(record.finished_at or 0.0) - record.created_at for record in records]
    print(json.dumps({"seconds": seconds, "cpu_seconds": used}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("episodes", nargs="?", type=int, default=50)
    parser.add_argument("sandbox", nargs="?", default="bubblewrap")
    parser.add_argument("at_once", nargs="?", type=int, default=1)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve is not None:
        serve(given.serve)
        return
    measure = whole_episodes if given.whole else sandboxes
    with tempfile.TemporaryDirectory() as directory:
        files = Path(directory) / "files"
        files.mkdir()
        for number in range(100):
            (files / f"{number}.py").write_text("x = 1\n" * 100)
        (Path(directory) / "swarm").mkdir()
        base = Path(directory) / "copies"
        figures = measure(given.sandbox, files, base, given.episodes, given.at_once)
    print(f"{given.sandbox}: {given.episodes} episodes, {given.at_once} at once")
    report(
        {
            "benchmark": "exec",
            "sandbox": given.sandbox,
            "whole": given.whole,
            "episodes": given.episodes,
            "at_once": given.at_once,
            **figures,
            "goal_seconds": GOAL_SECONDS,
            "goal_cpu_seconds": GOAL_CPU_SECONDS,
            "load": round(os.getloadavg()[0], 2),
        },
        given.output,
    )


if __name__ == "__main__":
    main()
