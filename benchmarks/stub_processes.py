"""Processes for benchmarks: a gateway with an immediate engine, and a bare recorder."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, cast

from ajet_installation.settings import Settings
from ajet_server.serve import serve, serve_gateway
from ajet_testing.plugins import scripted_plugins


@dataclass(frozen=True)
class Child:
    """A process that listens on a loopback port."""

    pid: int
    port: int

    def cpu_seconds(self) -> float:
        """Return its CPU seconds, user and system, with a resolution of nanoseconds."""
        # What clock_getcpuclockid(3) returns on Linux.
        return time.clock_gettime((~self.pid << 3) | 2)

    def children(self) -> list[Child]:
        """Return its child processes, which listen on the same port."""
        tasks = Path(f"/proc/{self.pid}/task").glob("*/children")
        return [Child(int(pid), self.port) for task in tasks for pid in task.read_text().split()]

    def rss_mib(self) -> float:
        """Return its resident memory in MiB."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text(encoding="utf-8").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def open_files(self) -> int:
        """Return its number of open file descriptors."""
        return sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir())


@contextmanager
def gateway(run_dir: Path, model_dir: Path, processes: int = 1) -> Iterator[Child]:
    """Run a swarm server with the scripted engine and trainer.

    With several processes, its children are the server process and the gateway processes.
    """
    with child([__file__, "gateway", str(run_dir), str(model_dir), str(processes)]) as process:
        yield process


@contextmanager
def gateways_of(run_dir: Path, model_dir: Path, count: int) -> Iterator[tuple[Child, list[Child]]]:
    """Run a swarm server as `gateway` does, with gateways as on other machines."""
    link, *ports = _unused_ports(1 + count)
    secret = {"AJET_SERVER__GATEWAY_TOKEN": "gateway-token-of-a-benchmark"}
    server = {
        **os.environ,
        **secret,
        "AJET_SERVER__GATEWAYS_LISTEN": f"127.0.0.1:{link}",
        "AJET_SERVER__PUBLIC_URL": f"http://127.0.0.1:{ports[0]}",
    }
    command = [__file__, "gateway", str(run_dir), str(model_dir), "1"]
    with ExitStack() as running:
        serving = running.enter_context(child(command, server))
        gateways = []
        for port in ports:
            env = {
                **os.environ,
                **secret,
                "AJET_GATEWAY__SERVER": f"127.0.0.1:{link}",
                "AJET_GATEWAY__URL": f"http://127.0.0.1:{port}",
                "AJET_SERVER__PORT": str(port),
            }
            gateways.append(running.enter_context(child([__file__, "remote"], env)))
        yield serving, gateways


def _unused_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


@contextmanager
def bare_recorder(reply: Path) -> Iterator[Child]:
    """Run a server that parses requests, keeps them in memory and answers with a file's content."""
    with child([__file__, "bare", str(reply)]) as process:
        yield process


@contextmanager
def child(command: Sequence[str], env: Mapping[str, str] | None = None) -> Iterator[Child]:
    """Run a Python program in a process, and read its port from standard error.

    :param command: the program's file and arguments.
    """
    process = subprocess.Popen(
        [sys.executable, *command], stderr=subprocess.PIPE, text=True, env=env
    )
    try:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if found := re.search(r"listen(?:ing|s) on (?:http://)?127\.0\.0\.1:(\d+)", line):
                break
        else:
            raise RuntimeError(f"{command[0]} did not start:\n{''.join(said)}")
        # Pass on the rest of its output, which would otherwise fill the pipe.
        threading.Thread(
            target=lambda: sys.stderr.writelines(process.stderr or ()), daemon=True
        ).start()
        yield Child(process.pid, int(found[1]))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _serve_gateway(run_dir: Path, model_dir: Path, processes: int) -> None:
    """Serve until the parent ends this process."""

    settings = Settings(
        server={
            "run_dir": run_dir,
            "model_roots": [model_dir.parent],
            "port": 0,
            "max_open_episodes": 20_000,
            "max_waiting_claims": 2_000,
            # Without it, a setting of the environment applies.
            **({"processes": processes} if processes > 1 else {}),
        }
    )
    serve(settings, scripted_plugins())


class _Recorder(asyncio.Protocol):
    """Minimal HTTP for the benchmark's load: whole requests with a content length."""

    kept: ClassVar[list[object]] = []

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (head := self._buffer.find(b"\r\n\r\n")) >= 0:
            length = int(self._buffer[:head].lower().split(b"content-length:")[1].split(b"\r\n")[0])
            end = head + 4 + length
            if len(self._buffer) < end:
                return
            self.kept.append(json.loads(self._buffer[head + 4 : end]))
            del self._buffer[:end]
            self._transport.write(self._answer)


async def _serve_bare(body: bytes) -> None:
    head = (
        f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Recorder(head.encode() + body), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    print(f"listening on http://127.0.0.1:{port}", file=sys.stderr, flush=True)
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()


if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    if kind == "remote":
        serve_gateway(Settings())
    elif kind == "gateway":
        _serve_gateway(Path(rest[0]), Path(rest[1]), int(rest[2]))
    else:
        from ajet_installation.event_loop import loop_factory

        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve_bare(Path(rest[0]).read_bytes()))
