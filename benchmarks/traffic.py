"""Count the bytes of an episode between client, agent, server, engine and trainer.

A client trains a tiny model on a real server, whose worker hosts the engine and the trainer
`torch`. All bytes are counted on the sockets between the processes, in both directions: two relays
on TCP, one for the client (claims, heartbeats, ends) and one for its agent (model calls), with the
heads of HTTP; and one on the server's socket to its worker, which reads the frames to tell the
engine's (`generate`) from the trainer's (`step`). With shared weights none are sent. In a
centralised loop in one process all of these are 0 (`centralised.py` counts its connections).

`*_bytes` are bytes per episode, `up` towards the worker and `down` from it. `tokens` are the
prompt's and the sampled tokens of an episode's calls as the engine gets and returns them, and
`bytes_per_token` is all bytes over these tokens. `other_bytes` are those of the other frames to and
from the worker in the whole run, most of which are sent once.

The JSON line comes last; `--output` also writes it to a file, with date and hardware.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack
from options import at_least
from recorded import recorded_episodes
from reporting import report
from stub_processes import child

from agentjet.client import AsyncSwarmClient
from ajet_installation.settings import Settings
from ajet_server.serve import serve
from ajet_server.workers import frames, methods
from ajet_server.workers.connection import WorkerConnection
from ajet_worlds import load_world
from ajet_worlds.agent import WorldAgent
from ajet_worlds.recipe import run_config
from ajet_worlds.tiny_model import create_tiny_model

ROOT = Path(__file__).resolve().parents[1]
CONTROL, CLIENT = "control-token-of-a-benchmark", "client-token-of-a-benchmark"
UP, DOWN = "up", "down"
_LENGTH = struct.Struct(">I")
_PIECE = 1 << 16


class Relay:
    """Passes TCP connections on, and counts their bytes.

    :ivar target: port of the server.
    :ivar counts: bytes by direction.
    """

    def __init__(self) -> None:
        self.target = 0
        self.counts = Counter[str]()
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        """Where it listens."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._open:
            writer.close()
        await self._server.wait_closed()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.target)
        self._open |= {writer, server_writer}

        def count(direction: str, data: bytes) -> None:
            self.counts[direction] += len(data)

        await relayed((reader, writer), (server_reader, server_writer), count)


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def relayed(below: Stream, above: Stream, note: Callable[[str, bytes], object]) -> None:
    """Pass on what two connections send to each other, until both have ended.

    :param note: called with the direction and what is passed on; `UP` is from `below` to `above`.
    """

    async def pump(direction: str, reader: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(_PIECE):
                note(direction, data)
                to.write(data)
                await to.drain()
            to.write_eof()

    await asyncio.gather(pump(UP, below[0], above[1]), pump(DOWN, above[0], below[1]))
    below[1].close()
    above[1].close()


class FrameCounter:
    """Counts the bytes of frames between server and worker by method and direction."""

    def __init__(self) -> None:
        self.counts = Counter[str]()
        self._methods: dict[int, str] = {}
        self._waiting = {UP: bytearray(), DOWN: bytearray()}

    def note(self, direction: str, data: bytes) -> None:
        """Count what was sent."""
        waiting = self._waiting[direction]
        waiting += data
        while len(waiting) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(waiting)[0]
            if len(waiting) < end:
                return
            frame = msgpack.unpackb(
                bytes(waiting[_LENGTH.size : end]),
                unicode_errors="surrogatepass",
                strict_map_key=False,
            )
            self.counts[f"{self._method(frame)} {direction}"] += end
            del waiting[:end]

    def _method(self, frame: list[Any]) -> str:
        kind, *rest = frame
        if kind == frames.CHUNKS:
            return methods.GENERATE
        if kind == frames.END:
            return "end"
        if kind == frames.CALL:
            self._methods[rest[0]] = rest[1]
        return self._methods[rest[0]]


def count_frames() -> FrameCounter:
    """Count the frames of all workers that this process connects to from now on."""
    counter = FrameCounter()
    open_connection = WorkerConnection.open
    relaying = set[asyncio.Task[None]]()

    async def counted(connected: socket.socket) -> WorkerConnection:
        ours, theirs = socket.socketpair()
        below = await asyncio.open_unix_connection(sock=theirs)
        above = await asyncio.open_unix_connection(sock=connected)
        relaying.add(asyncio.create_task(relayed(below, above, counter.note)))
        return await open_connection(ours)

    WorkerConnection.open = counted  # type: ignore[method-assign, assignment]
    return counter


def serve_counted(directory: Path, public_url: str) -> None:
    """Run a server, and write the counts of its frames to a file when it ends."""
    file = directory / "frames.json"
    counter = count_frames()
    settings = Settings(
        server={
            "run_dir": directory / "server",
            "model_roots": [directory],
            "port": 0,
            "public_url": public_url,
            "control_token": CONTROL,
            "client_token": CLIENT,
            "boot_timeout_seconds": 900,
        }
    )
    try:
        serve(settings)
    finally:
        file.write_text(json.dumps(counter.counts), encoding="utf-8")


async def roll_out(options: argparse.Namespace, directory: Path) -> dict[str, Counter[str]]:
    """Train, and return the bytes of the client and of the agent."""
    world = load_world(options.world)
    relays = {"client": Relay(), "agent": Relay()}
    for relay in relays.values():
        await relay.open()
    command = [__file__, "--serve", str(directory), relays["agent"].url]
    with child(command) as server:
        for relay in relays.values():
            relay.target = server.port
        async with AsyncSwarmClient(f"http://127.0.0.1:{server.port}", CONTROL) as control:
            await control.sync_train_config(
                run_config(world, directory / "model", seed=options.seed)
            )
            await control.start_engine(900)
            client = AsyncSwarmClient(relays["client"].url, CLIENT)
            async with client, WorldAgent(world) as agent:
                batch = world.recipe.batch
                done = await client.run_episodes_until_all_complete(
                    world.task_ids("train", options.seed, options.steps * batch.tasks),
                    agent,
                    episodes_per_task=batch.episodes_per_task,
                    concurrency=batch.episodes,
                )
                assert not done.failures, done
            # The server is another process.
            while (await control.status()).step < options.steps:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            await control.stop_engine(120)
        counts = {name: Counter(relay.counts) for name, relay in relays.items()}
    for relay in relays.values():
        await relay.close()
    return counts


def measure(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Return all figures."""
    world = load_world(options.world)
    create_tiny_model(directory / "model", worlds=[world], seed=options.seed)
    counts = asyncio.run(roll_out(options, directory))
    sent = Counter(json.loads((directory / "frames.json").read_text(encoding="utf-8")))
    for hop, method in (("engine", methods.GENERATE), ("trainer", methods.STEP.name)):
        counts[hop] = Counter({way: sent.pop(f"{method} {way}", 0) for way in (UP, DOWN)})
    episodes = recorded_episodes(directory / "server")
    tokens = sum(call.length for episode in episodes for call in episode.calls)
    per_episode = {
        f"{hop}_{way}_bytes": round(of[way] / len(episodes), 1)
        for hop, of in counts.items()
        for way in (UP, DOWN)
    }
    hops = {
        f"{hop}_bytes": round(sum(of.values()) / len(episodes), 1) for hop, of in counts.items()
    }
    return {
        "benchmark": "traffic",
        "world": options.world,
        "seed": options.seed,
        "episodes": len(episodes),
        "calls": sum(len(episode.calls) for episode in episodes),
        "tokens": round(tokens / len(episodes), 1),
        **hops,
        **per_episode,
        "other_bytes": {name: sent[name] for name in sorted(sent)},
        "bytes_per_token": round(sum(sum(of.values()) for of in counts.values()) / tokens, 2),
    }


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve_counted(Path(sys.argv[2]), sys.argv[3])
        return
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--world", default="grid")
    parser.add_argument("--steps", type=at_least(1), default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="also write the result to this file")
    options = parser.parse_args()
    # Environments of engines and trainers are searched for above the run directory.
    (ROOT / "runs").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="traffic-", dir=ROOT / "runs") as directory:
        report(measure(options, Path(directory)), options.output)


if __name__ == "__main__":
    main()
