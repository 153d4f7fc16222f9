"""Episodes of `ajet exec`, a fifth of which have a fault: what becomes of each, JSON last.

The faults are a program that is missing or hangs before its first call, an engine that fails while
the program hides it, a sandbox that does not start or is killed while it runs, rewards that are
nonsense, NaN or late, and a disk that becomes full (a budget of its own, and as root a small file
system). Their episodes must be aborted with their cause. A program that hangs or fails after a
call, repeats a call that failed, leaves a daemon, or prints 200 MB, does not affect the reward: its
episode is rewarded. At the end no process and no directory may be left.

    python benchmarks/exec_faults.py [EPISODES] [CONCURRENCY]
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentjet import AsyncSwarmClient, SwarmClient, Task
from ajet_core.interfaces import BoxLimits
from ajet_exec import BoxedProgram, ProgramTerms, load_sandbox
from ajet_exec.boxes import owners
from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm

SHARE = 0.2
MARK = "31557600"
"""Seconds that daemons sleep, by which they are recognized."""
ASK = """
import json, os, sys, urllib.request
body = {"model": os.environ["AJET_MODEL"], "max_tokens": 8,
        "messages": [{"role": "user", "content": " ".join(sys.argv[1:]) or "Write 42"}]}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(),
    {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"})
with urllib.request.urlopen(request) as answer:
    open("answer.txt", "w").write(json.load(answer)["choices"][0]["message"]["content"])
"""
BREAK = "python3 ask.py break-$AJET_EPISODE_ID"
"""A call that the engine fails to answer the first time."""
KILLED = "31557601"
"""Seconds that a program sleeps whose sandbox is killed meanwhile."""
GRADE = 'test "$(cat answer.txt)" = 42 && echo 1 || echo 0'


@dataclass(frozen=True)
class Case:
    """What happens in an episode.

    :param cause: texts of which one is in the reason of the abort; none if it is rewarded.
    :param terms: changes of `ProgramTerms`.
    """

    name: str
    script: str = "python3 ask.py"
    grade: str = GRADE
    cause: tuple[str, ...] = ()
    terms: Mapping[str, Any] = field(default_factory=dict)


GOOD = (
    Case("asks and ends"),
    Case("exit 3 after a call", "python3 ask.py; exit 3"),
)
ODD = (
    Case("hangs", f"python3 ask.py; sleep {MARK}", terms={"timeout": 20.0}),
    Case("leaves a daemon", f"python3 ask.py; (setsid sleep {MARK} >/dev/null 2>&1 &); true"),
    Case("prints 200 MB", "python3 ask.py; head -c 200000000 /dev/zero"),
    Case("repeats a call", f"python3 ask.py; {BREAK}; {BREAK}"),
)
FULL = ("is full", "No space left")
BUDGET = {"disk_bytes": 2**25}
FAULTS = (
    Case("missing program", "no-such-agent", cause=("made no model call",)),
    Case(
        "hangs before its first call",
        f"sleep {MARK}; python3 ask.py",
        cause=("was stopped after its time limit",),
        terms={"timeout": 5.0},
    ),
    Case(
        "failing engine",
        f"python3 ask.py; {BREAK}; true",
        cause=("failed to answer its last model call",),
    ),
    Case(
        "killed in the middle",
        f"python3 ask.py; sleep {KILLED}",
        cause=("was ended from outside while it ran",),
    ),
    Case("nonsense", grade="echo great", cause=("its last line must be a number",)),
    Case("NaN", grade="echo NaN", cause=("must be a finite number",)),
    Case("NaN in a file", grade="echo NaN > /logs/verifier/reward.txt", cause=("finite number",)),
    Case("grader fails", grade="echo broken >&2; exit 2", cause=("status 2: broken",)),
    Case(
        "grader hangs",
        grade=f"sleep {MARK}",
        cause=("took more than 3 s",),
        terms={"reward_timeout": 3.0},
    ),
    Case(
        "dead sandbox", cause=("bwrap could not start",), terms={"read_only": {"/x": Path("/no")}}
    ),
    Case(
        "budget of disk",
        "python3 ask.py; head -c 50000000 /dev/zero > big",
        cause=("together (--disk)",),
        terms=BUDGET,
    ),
)
FULL_DISK = Case("full disk", "python3 ask.py; cat /dev/zero > big", cause=FULL)


@contextlib.contextmanager
def small_disk(place: Path) -> Iterator[Path | None]:
    """A small file system, None if this user or machine mounts none."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(place)]
    mounted = os.geteuid() == 0 and not subprocess.run(mount, check=False).returncode
    try:
        yield place if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", str(place)], check=True)


def processes() -> int:
    """The processes of programs that are left, whatever their parent is now."""
    marked = owners.marked(lambda mark: mark.startswith(owners.launcher()))
    return max(len(marked), len(sleeping(MARK)) + len(sleeping(KILLED)))


def sleeping(seconds: str) -> list[int]:
    """The processes that sleep so long."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "cmdline").read_bytes() == f"sleep\0{seconds}\0".encode():
                found.append(int(entry.name))
    return found


async def kill_sandboxes() -> None:
    """Kill each sandbox whose program sleeps `KILLED` seconds, without end."""
    while True:
        for pid in sleeping(KILLED):
            with contextlib.suppress(OSError):
                while (parent := parent_of(pid)) not in (0, os.getpid()):
                    pid = parent  # noqa: PLW2901
                if parent:
                    os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(0.2)


def parent_of(pid: int) -> int:
    """The parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def roll_out(
    swarm: ScriptedSwarm, cases: list[Case], at_once: int, place: Path
) -> list[Path]:
    """Roll an episode out for each case; return where working copies were made."""
    sandbox = load_sandbox("bubblewrap")
    with small_disk(place / "small") as small:
        bases = {
            case.name: (small or place) / "full" if case is FULL_DISK else place / case.name
            for case in cases
        }
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(AsyncSwarmClient(swarm.url, swarm.token))
            boxed = {
                case.name: await stack.enter_async_context(
                    BoxedProgram(
                        ProgramTerms(
                            argv=("sh", "-c", case.script),
                            reward=("sh", "-c", case.grade),
                            **{
                                "files": place / "files",
                                "grace": 1.0,
                                "timeout": 120.0,
                                "limits": BoxLimits(output_bytes=100_000),
                                **case.terms,
                            },
                        ),
                        sandbox,
                        client,
                        base=bases[case.name],
                    )
                )
                for case in {case.name: case for case in cases}.values()
            }

            async def agent(task: Task, episode: Any) -> Any:
                return await boxed[task.payload["case"]].agent(task, episode)

            tasks = [Task(str(i), {"case": case.name}) for i, case in enumerate(cases)]
            killing = asyncio.create_task(kill_sandboxes())
            stack.callback(killing.cancel)
            await client.run_episodes_until_all_complete(
                tasks, agent, episodes_per_task=1, concurrency=at_once, retries=0, kind="eval"
            )
        return [path for base in set(bases.values()) for path in base.iterdir()]


def main(count: int, at_once: int) -> None:
    chosen = random.Random(0)
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        place.chmod(0o755)
        (place / "files").mkdir()
        (place / "files/ask.py").write_text(ASK)
        faults = [*FAULTS, FULL_DISK] if os.geteuid() == 0 else list(FAULTS)
        number = round(count * SHARE)
        bad = [faults[i % len(faults)] for i in range(number)]
        # Odd but rewarded episodes are as many as faults.
        cases = bad + [ODD[i % len(ODD)] for i in range(number)]
        cases += [GOOD[i % len(GOOD)] for i in range(count - len(cases))]
        chosen.shuffle(cases)
        began = time.perf_counter()
        says = ("42<|im_end|>",)
        replies = (
            ScriptedReply(prompt="break-", says=says, error="engine"),
            ScriptedReply(prompt="", says=says),
        )
        with ScriptedSwarm(place / "swarm", replies) as swarm:
            left = asyncio.run(roll_out(swarm, cases, at_once, place))
            episodes = {int(episode.task_id): episode for episode in swarm.episodes()}
            with SwarmClient(swarm.url, swarm.tokens.control) as control:
                state = control.run_status().state
        seconds = time.perf_counter() - began
        outcomes: dict[str, Counter[str]] = {}
        wrong: list[str] = []
        for i, case in enumerate(cases):
            episode = episodes[i]
            reason = episode.reason.partition("\n")[0]
            right = (
                episode.state == "aborted" and any(cause in reason for cause in case.cause)
                if case.cause
                else episode.reward == 1.0
            )
            outcomes.setdefault(case.name, Counter())[
                "aborted" if episode.state == "aborted" else f"reward {episode.reward:g}"
            ] += 1
            if not right:
                wrong.append(f"{case.name}: {episode.state} {episode.reward} {reason}")
        rewarded = sum(episodes[i].reward is not None for i, case in enumerate(cases) if case.cause)
        figures = {
            "episodes": count,
            "at_once": at_once,
            "faults": len(bad),
            "rewards_from_faults": rewarded,
            "wrong": wrong,
            "processes_left": processes(),
            "directories_left": len(left),
            "run_state": state,
            "outcomes": {name: dict(found) for name, found in sorted(outcomes.items())},
            "seconds": round(seconds, 1),
            "cores": os.cpu_count(),
            "load": round(os.getloadavg()[0], 2),
        }
        for name, found in sorted(outcomes.items()):
            print(f"{name}: {dict(found)}")
        print(json.dumps(figures))
        if wrong or rewarded or left or figures["processes_left"]:
            raise SystemExit(1)


if __name__ == "__main__":
    numbers = list(map(int, sys.argv[1:]))
    main(numbers[0] if numbers else 200, numbers[1] if len(numbers) > 1 else 16)
