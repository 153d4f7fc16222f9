"""Run the programs of `ajet exec`'s profiles as agents, each with a scripted model.

Each episode is `ajet exec` with a sandbox. The model answers with a call of the program's own shell
tool, which writes a file, and then with a text; the reward is 1 if the file is there. So an episode
has at least two turns; that of a program without tools (aider) has one, whose text is the edit.
Between `ajet exec` and the server, a relay reads which answers are streams.

All other figures are from the store: calls and their episodes (each task's prompt contains its own
word, which must be in all calls of its episode and in no other), forks, and the tokens that were
computed again. Seconds and CPU seconds are those of the programs with all their processes. Memory
is the largest sum of proportional set sizes of everything at once, sampled each second.

    PATH=/opt/agents/opencode/bin:$PATH python benchmarks/exec_agents.py --programs opencode

Twenty episodes at once, of ten tasks:

    python benchmarks/exec_agents.py --programs mini-swe-agent opencode --tasks 10 --at-once 20

It runs the programs that are on PATH, and exits with 1 if an episode of one of them fails. What a
program needs of a home directory, such as the Python of its virtual environment, is shown in its
sandboxes. The JSON line comes last.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import httpx2
from options import at_least
from reporting import report

from ajet_exec import load_profiles
from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm

WRITE = "echo 42 > answer.txt"
# Before the program and its arguments: writes down their CPU time.
TIMED = ("sh", "-c", '"$@"; status=$?; times > .cpu; exit $status', "sh")
GRADE = """
import json, os, re
used = re.findall(r"(\\d+)m([\\d.]+)s", open(".cpu").read().splitlines()[1])
cpu = sum(60 * float(minutes) + float(seconds) for minutes, seconds in used)
done = os.path.exists("answer.txt") and open("answer.txt").read().strip() == "42"
print(json.dumps({"reward": float(done), "cpu_seconds": cpu}))
"""
# The tokenizer of the scripted model makes two to three times the tokens of a real one.
MAX_CONTEXT = 1_000_000
GROUP = 2
MODEL_PATH = re.compile(
    rb"POST (\S*/(?:chat/completions|responses|messages|completions"
    rb"|\S+:(?:streamG|g)enerateContent)(?:\?\S*)?) HTTP/1\.1\r\n"
)
STREAM = re.compile(rb"^content-type: text/event-stream", re.MULTILINE | re.IGNORECASE)

Tool = tuple[str, Mapping[str, Any]]


def shell(name: str, argument: str = "command", command: Any = WRITE, **others: Any) -> Tool:
    """Return the call of a shell tool."""
    return name, {argument: command, **others}


# What the model calls, turn by turn, before it answers with a text: by profile.
TOOLS: Mapping[str, Sequence[Tool]] = {
    "mini-swe-agent": [
        shell("bash"),
        shell("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
    ],
    "opencode": [shell("bash", description="Write the file")],
    "anthropic": [shell("Bash", description="Write the file")],
    "codex": [shell("exec_command", "cmd")],
    "gemini": [shell("run_shell_command", description="Write the file")],
    "qwen-code": [shell("run_shell_command", is_background=False)],
    "pi": [shell("bash")],
    "copilot": [shell("bash", description="Write the file", mode="sync")],
    "aider": [],
    "vibe": [shell("bash")],
    "kimi-cli": [shell("Shell")],
    "openhands": [
        shell("terminal", security_risk="LOW"),
        ("finish", {"message": "The file is written.", "security_risk": "LOW"}),
    ],
    "cline": [("run_commands", {"commands": [WRITE]})],
    "continue": [shell("Bash")],
    "nanocoder": [shell("execute_bash")],
    "gptme": [shell("shell"), ("complete", {})],
}
# What the model says to programs that do what its texts say.
EDITS = {"aider": "answer.txt\n```\n42\n```"}


def replies(profile: str) -> list[ScriptedReply]:
    """Return the model's answers, by the number of tool results in a prompt."""
    if profile in EDITS:
        return [ScriptedReply(prompt=".", says=(f"{EDITS[profile]}<|im_end|>",))]
    texts = [
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
        for name, arguments in TOOLS[profile]
    ]
    by_turn = [
        ScriptedReply(prompt="<tools>" + "(.*<tool_response>)" * turn, says=(f"{text}<|im_end|>",))
        for turn, text in enumerate([*texts, "The file is written."])
    ]
    # Without tools it is a side call, such as one for a title.
    return [*reversed(by_turn), ScriptedReply(prompt=".", says=("Write a number<|im_end|>",))]


@dataclass
class Wire:
    """A relay in front of a server that keeps what passes, by connection."""

    port: int
    asked: list[bytearray] = field(default_factory=list)
    answered: list[bytearray] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """Yield the URL at which it listens."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    def paths(self) -> Counter[str]:
        """Return the numbers of model calls by path."""
        return Counter(path.decode() for one in self.asked for path in MODEL_PATH.findall(one))

    def streams(self) -> int:
        """Return the number of answers to model calls that are streams."""
        pairs = zip(self.asked, self.answered, strict=True)
        return sum(len(STREAM.findall(said)) for asked, said in pairs if MODEL_PATH.search(asked))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.port)
        asked, answered = bytearray(), bytearray()
        self.asked.append(asked)
        self.answered.append(answered)
        await asyncio.gather(_copy(reader, far_writer, asked), _copy(far_reader, writer, answered))


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray
) -> None:
    # Either side may end a connection at any time.
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            kept += data
            writer.write(data)
            await writer.drain()
    writer.close()


def memory(root: int) -> int:
    """Return the sum of the proportional set sizes of a process and its descendants, in bytes."""
    total, waiting = 0, [root]
    while waiting:
        process = Path(f"/proc/{waiting.pop()}")
        # Processes end while they are looked at.
        with contextlib.suppress(OSError):
            for thread in (process / "task").iterdir():
                waiting += map(int, (thread / "children").read_text().split())
            (size,) = re.findall(r"^Pss: *(\d+)", (process / "smaps_rollup").read_text(), re.M)
            total += int(size) * 1024
    return total


async def watched(process: asyncio.subprocess.Process) -> int:
    """Wait for a process, and return the most memory that it and its descendants had."""
    most = 0
    while process.returncode is None:
        most = max(most, await asyncio.to_thread(memory, process.pid))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await process.wait()
    return most


def needs(executable: Path) -> list[Path]:
    """Return the installations that a program needs: its own, and that of its interpreter.

    That is the directory of ``bin``, for each link on the way to the file.
    """
    places = []
    waiting = [executable]
    while waiting:
        file = waiting.pop()
        places.append(file.parent.parent if file.parent.name == "bin" else file)
        if file.is_symlink():
            waiting.append(Path(os.path.normpath(file.parent / file.readlink())))
            continue
        with file.open("rb") as opened:
            begin = opened.readline(4096)
        if begin.startswith(b"#!"):
            words = begin[2:].decode().split()
            name = words[-1] if Path(words[0]).name == "env" else words[0]
            waiting += [Path(path)] if (path := shutil.which(name)) else []
    return places


def hidden_by_default(place: Path) -> bool:
    """Return whether sandboxes show an empty directory instead."""
    return any(place.is_relative_to(home) for home in (Path.home(), Path("/home"), Path("/root")))


def command_of(profile: str) -> list[str]:
    """Return the command of a profile."""
    return shlex.split(load_profiles()[profile].command)


async def rolled_out(profile: str, options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Roll out episodes of a program, and return its row."""
    tools, at_once = TOOLS[profile], options.at_once
    most = 1 if options.once else options.tasks
    count = 1 if options.once else GROUP * most
    files = directory / "files"
    files.mkdir()
    (files / "README.md").write_text("Write the answer into answer.txt.\n")
    (directory / "tests").mkdir()
    (directory / "tests/grade.py").write_text(GRADE)
    tasks = {f"t{number}": f"marker{number:04}x" for number in range(most)}
    (directory / "tasks.jsonl").write_text(
        "".join(
            json.dumps({"id": task, "prompt": f"Write 42 into answer.txt. Ignore {word}."}) + "\n"
            for task, word in tasks.items()
        )
    )
    batch = {"tasks": len(tasks), "episodes_per_task": GROUP}
    swarm = ScriptedSwarm(
        directory / "swarm", replies(profile), max_context=MAX_CONTEXT, batch=batch
    )
    executable = Path(shutil.which(command_of(profile)[0]) or "")
    shown = {str(place) for place in needs(executable) if hidden_by_default(place)}
    extra = [word for path in sorted(shown) for word in ("--read-only", path)]
    if options.once:
        extra.append("--once")
    with swarm:
        wire = Wire(int(swarm.url.rpartition(":")[2]))
        began = monotonic()
        async with wire.open() as url:
            process = await asyncio.create_subprocess_exec(
                *(str(Path(sys.executable).with_name("ajet")), "exec", "--url", url),
                *("--tasks", str(directory / "tasks.jsonl"), "--files", str(files)),
                *("--tests", str(directory / "tests"), "--reward", "python3 /tests/grade.py"),
                *("--profile", profile, "--concurrency", str(at_once)),
                *("--retries", "0", "--max-calls", "20", "--timeout", str(options.timeout), *extra),
                *("--", *TIMED, *command_of(profile)),
                cwd=directory,
                env={**os.environ, "AJET_TOKEN": swarm.token},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            assert process.stdout is not None
            said, most = await asyncio.gather(process.stdout.read(), watched(process))
        seconds = monotonic() - began
        if options.wire is not None:
            for number, (asked, answered) in enumerate(zip(wire.asked, wire.answered, strict=True)):
                if MODEL_PATH.search(asked):
                    (options.wire / f"{profile}-{number}.asked").write_bytes(asked)
                    (options.wire / f"{profile}-{number}.answered").write_bytes(answered)
        row = {**recorded(swarm, tasks, tools=bool(tools)), **on_the_wire(wire)}
    row |= {
        "at_once": at_once,
        "seconds": round(seconds, 1),
        "memory_mib": most // 2**20,
        "ok": process.returncode == 0 and is_well(row, count, len(tools)),
    }
    if not row["ok"]:
        print(said.decode(errors="replace"), file=sys.stderr)
    return row


def on_the_wire(wire: Wire) -> dict[str, Any]:
    """Return what was asked and answered."""
    paths = wire.paths()
    return {"paths": dict(paths), "requests": paths.total(), "streamed": wire.streams()}


def recorded(swarm: ScriptedSwarm, words: Mapping[str, str], *, tools: bool) -> dict[str, Any]:
    """Return what the store has of the episodes.

    :param words: the word in the prompt of each task.
    :param tools: whether the program has tools, so that calls without any are side calls.
    """
    episodes = swarm.episodes()
    ended = [episode for episode in episodes if episode.state == "ended"]
    forks: Counter[str] = Counter()
    row = dict.fromkeys(
        (
            "rewarded",
            "calls",
            "tool_calls",
            "turns",
            "side_calls",
            "tokens_again",
            "tokens",
            "misplaced",
        ),
        0,
    )
    with httpx2.Client(base_url=swarm.url) as client:
        client.headers["authorization"] = f"Bearer {swarm.tokens.control}"
        for episode in episodes:
            row["rewarded"] += episode.reward == 1.0
            seen = client.get(f"/v1/timelines/{episode.episode_id}").raise_for_status().json()
            row["tokens"] += seen["tokens"]
            for fork in seen["forks"]:
                forks[f"{fork['kind']} {fork['role']} {fork['field']}".strip()] += 1
                row["tokens_again"] += fork["recomputed_tokens"]
            for call in swarm.calls(episode.episode_id):
                text = swarm.text(call)
                own = words[episode.task_id]
                row["misplaced"] += {word for word in words.values() if word in text} != {own}
                row["calls"] += 1
                row["turns" if call.tools or not tools else "side_calls"] += 1
                row["tool_calls"] += call.answer is not None and bool(call.answer.tool_calls)
    return {
        "episodes": len(episodes),
        **row,
        "forks": dict(forks),
        "program_seconds": middle(float(one.metadata["seconds"]) for one in ended),
        "program_cpu_seconds": middle(one.components["cpu_seconds"] for one in ended),
    }


def middle(values: Iterable[float]) -> float:
    """Return the median, 0 without values."""
    return round(statistics.median([*values] or [0.0]), 2)


def is_well(row: Mapping[str, Any], count: int, tools: int) -> bool:
    """Return whether all episodes did what they had to, and all calls are in their own."""
    return (
        row["episodes"] == row["rewarded"] == count
        and row["calls"] == row["requests"]
        and row["turns"] >= (max(2, tools) if tools else 1) * count
        and row["tool_calls"] >= tools * count
        and row["misplaced"] == 0
    )


def version_of(executable: str) -> str:
    """Return the version that a program prints."""
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [executable, "--help" if executable.endswith("mini") else "--version"],
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, "HOME": home},
        )
    found = re.search(r"\d+(?:\.\d+)+", done.stdout + done.stderr)
    return found[0] if found else ""


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the table."""
    columns = (
        *("profile", "version", "episodes", "rewarded", "at_once", "calls", "turns", "tool_calls"),
        *("side_calls", "streamed", "tokens", "tokens_again", "seconds"),
        *("program_seconds", "program_cpu_seconds", "memory_mib", "forks"),
    )
    print(" | ".join(columns))
    for row in rows:
        print(" | ".join(str(row[column]) for column in columns))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--programs", nargs="*", choices=list(TOOLS), help="profiles; all by default"
    )
    parser.add_argument("--tasks", type=at_least(1), default=2, help="of two episodes each")
    parser.add_argument("--at-once", type=at_least(1), default=2)
    parser.add_argument("--timeout", type=at_least(1), default=900, help="seconds of an episode")
    parser.add_argument("--once", action="store_true", help="a single one, by ajet exec --once")
    parser.add_argument("--wire", type=Path, help="directory for what was sent, for debugging")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if options.wire:
        options.wire.mkdir(parents=True, exist_ok=True)
    rows, missing = [], []
    for profile in options.programs or TOOLS:
        executable = shutil.which(command_of(profile)[0])
        if executable is None:
            missing.append(profile)
            continue
        with tempfile.TemporaryDirectory() as directory:
            # Sandboxes have users of their own.
            Path(directory).chmod(0o755)
            row = asyncio.run(rolled_out(profile, options, Path(directory)))
        rows.append({"profile": profile, "version": version_of(executable), **row})
    show(rows)
    report({"benchmark": "exec_agents", "programs": rows, "missing": missing}, options.output)
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
