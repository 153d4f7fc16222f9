"""The processes of `recovery.py`, which may be killed: a gateway with its workers, and clients."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from recovery_clients import FINISH, TOKEN

from agentjet.client import SwarmClient
from ajet_core.errors import AjetError
from ajet_core.protocol import ServerState, ServerStatus

HERE = Path(__file__).resolve().parent
CONTROL = "recovery-control-token"
POLL_SECONDS = 0.02
_DUMP_SECONDS = 1.0
_SHOWN = 6000


def serve_gateway(run_dir: str, model_dir: str, port: str, processes: str) -> None:
    """Run the gateway as `ajet serve` does, with the witnesses among its plugins."""
    from importlib.metadata import EntryPoint

    from ajet_core.plugin import PluginManager
    from ajet_core.plugin.discovery import installed_entry_points
    from ajet_installation.settings import Settings
    from ajet_server.serve import serve
    from ajet_testing.plugins import entry_points_of

    settings = Settings(
        server={
            "run_dir": run_dir,
            "model_roots": [str(Path(model_dir).parent)],
            "port": int(port),
            "control_token": CONTROL,
            "client_token": TOKEN,
            # Deliberate deaths do not indicate a problem.
            "worker_restarts": 1000,
            "processes": int(processes),
        }
    )
    points: list[EntryPoint] = [
        *installed_entry_points(),
        *entry_points_of("scripted", "ajet_testing.hooks"),
        *entry_points_of("witness", "recovery_plugins"),
    ]
    serve(settings, PluginManager(entry_points=points))


def spawn(script: str, *arguments: str, log: Path) -> subprocess.Popen[bytes]:
    """Start a script of this directory in a separate process."""
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, str(HERE / script), *arguments],
            stdout=file,
            stderr=file,
            env={**os.environ, "PYTHONPATH": path.rstrip(os.pathsep), "OMP_NUM_THREADS": "1"},
        )


@dataclass
class Swarm:
    """A server and its clients, each of which may be killed and started again.

    :param client_kinds: by client name, the kind as in `recovery_clients`.
    :param tags: by client name; empty without a mixture.
    :param episode_kinds: kinds of episodes that clients roll out in each round.
    :param patience: maximum seconds until the server is ROLLING again, and until a client records
        something or ends.
    :param processes: number of the server's gateway processes; 1 for none beside it.
    :ivar kills: number of processes killed with SIGKILL.
    :ivar runs_stopped: how often the run did not continue without help.
    :ivar hung: number of clients that made no progress for too long, or did not end.
    :ivar gave_up: number of clients that ended before they were asked to finish.
    """

    directory: Path
    port: int
    client_kinds: dict[str, str]
    tags: dict[str, str]
    episode_kinds: str
    patience: float
    processes: int = 1
    gateway: subprocess.Popen[bytes] | None = None
    clients: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    client_started: dict[str, float] = field(default_factory=dict)
    kills: int = 0
    runs_stopped: int = 0
    hung: int = 0
    gave_up: int = 0
    restarted: list[float] = field(default_factory=list)
    outages: list[tuple[float, float]] = field(default_factory=list)

    @property
    def url(self) -> str:
        """URL of the gateway."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def run_dir(self) -> Path:
        """Run directory of the server."""
        return self.directory / "run"

    def start_gateway(self) -> None:
        """Start the gateway, with the same command each time."""
        model = str(self.directory / "model")
        self.gateway = spawn(
            "recovery_swarm.py",
            str(self.run_dir),
            model,
            str(self.port),
            str(self.processes),
            log=self.directory / "gateway.log",
        )

    def start_client(self, name: str) -> None:
        """Start a client, for the first time or again."""
        now = time.time()
        if name in self.clients:
            self.restarted.append(now)
        self.client_started[name] = now
        self.clients[name] = spawn(
            "recovery_clients.py",
            self.client_kinds[name],
            self.url,
            str(self._journal(name)),
            repr(now),
            self.tags.get(name, ""),
            self.episode_kinds,
            log=self.directory / f"{name}.log",
        )

    def _journal(self, name: str) -> Path:
        return self.directory / f"{name}.jsonl"

    def kill_gateway(self) -> None:
        """Kill the gateway with SIGKILL."""
        assert self.gateway is not None
        self.gateway.kill()
        self.gateway.wait()
        self.kills += 1

    def parts(self) -> list[int]:
        """Return the processes of a server that has several."""
        assert self.gateway is not None
        tasks = Path(f"/proc/{self.gateway.pid}/task").glob("*/children")
        return [int(pid) for task in tasks for pid in task.read_text().split()]

    def kill_part(self, pid: int) -> None:
        """Kill one of them with SIGKILL, unless it has ended; the server replaces it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.kills += 1

    def kill_client(self, name: str) -> None:
        """Kill a client with SIGKILL."""
        self.clients[name].kill()
        self.clients[name].wait()
        self.kills += 1

    def look_after_clients(self) -> None:
        """Count clients that ended without a kill or made no progress while the server ran."""
        back = self.outages[-1][1] if self.outages else 0.0
        for name, process in list(self.clients.items()):
            if process.poll() is not None:
                self.gave_up += 1
                print(f"{name} gave up:\n{self._tail(f'{name}.log')}", file=sys.stderr)
                self.start_client(name)
                continue
            journal = self._journal(name)
            moved = journal.stat().st_mtime if journal.exists() else 0.0
            if time.time() - max(moved, back, self.client_started[name]) > self.patience:
                self._found_hung(name)
                self.start_client(name)

    def finish_clients(self) -> None:
        """Make all clients end after their rounds, and count those that do not."""
        (self.directory / FINISH).touch()
        for name, process in self.clients.items():
            try:
                status = process.wait(self.patience)
            except subprocess.TimeoutExpired:
                self._found_hung(name)
                continue
            if status != 0:
                self.gave_up += 1
                print(f"{name} gave up:\n{self._tail(f'{name}.log')}", file=sys.stderr)

    def _found_hung(self, name: str) -> None:
        """Print diagnostics of a client that makes no progress, and kill it."""
        self.hung += 1
        process = self.clients[name]
        process.send_signal(signal.SIGUSR1)
        time.sleep(_DUMP_SECONDS)
        print(f"{name} hangs:\n{self._tail(f'{name}.log')}", file=sys.stderr)
        self._show_server()
        process.kill()
        process.wait()

    def _show_server(self) -> None:
        with contextlib.suppress(AjetError), SwarmClient(self.url, CONTROL, retries=0) as client:
            print(json.dumps(client.status().model_dump(mode="json"), indent=1), file=sys.stderr)
        print(f"the gateway:\n{self._tail('gateway.log')}", file=sys.stderr)

    def _tail(self, name: str) -> str:
        return (self.directory / name).read_text(encoding="utf-8", errors="replace")[-_SHOWN:]

    def workers(self) -> list[int]:
        """Return the pids of the workers of any gateway."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    ours = any(word.startswith(bytes(self.run_dir)) for word in words)
                    if b"ajet_server.workers" in words and ours:
                        found.append(int(entry.name))
        return found

    def kill_workers(self, pids: Collection[int]) -> None:
        """Kill workers with SIGKILL, unless they have already ended."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.kills += 1

    def new_worker(self, before: Collection[int]) -> int | None:
        """Return the pid of a new worker, as soon as there is one."""
        deadline = time.monotonic() + self.patience
        while time.monotonic() < deadline:
            for pid in self.workers():
                if pid not in before:
                    return pid
            time.sleep(POLL_SECONDS)
        return None

    def wait_rolling(self, without: Collection[int] = ()) -> None:
        """Wait until the server is ROLLING without certain workers.

        A run that needs help is counted, printed, and started again or resumed.
        """
        deadline = time.monotonic() + self.patience
        with SwarmClient(self.url, CONTROL, retries=0) as client:
            while True:
                assert self.gateway is not None
                status: ServerStatus | None = None
                with contextlib.suppress(AjetError):
                    status = client.status()
                if self._is_back(status, without):
                    return
                if (why := self._stopped(status, time.monotonic() > deadline)) is not None:
                    self._help(client, why)
                    deadline = time.monotonic() + self.patience
                time.sleep(POLL_SECONDS)

    def _is_back(self, status: ServerStatus | None, without: Collection[int]) -> bool:
        if status is None or status.state is not ServerState.ROLLING:
            return False
        workers = self.workers()
        return bool(workers) and not set(workers) & set(without)

    def _stopped(self, status: ServerStatus | None, late: bool) -> str | None:
        """Return why the run will not continue without help, if so."""
        assert self.gateway is not None
        if self.gateway.poll() is not None:
            return f"the gateway ended with status {self.gateway.returncode}"
        if status is not None and status.error is not None:
            return f"the run failed: {status.error.message}"
        if status is not None and status.state is ServerState.PAUSED:
            return f"the run paused: {status.paused}"
        return f"the server is not ROLLING after {self.patience:g} s" if late else None

    def _help(self, client: SwarmClient, why: str) -> None:
        self.runs_stopped += 1
        print(f"did not continue by itself: {why}", file=sys.stderr)
        self._show_server()
        with contextlib.suppress(AjetError):
            if self.gateway is None or self.gateway.poll() is not None:
                self.start_gateway()
            elif client.status().state is ServerState.PAUSED:
                client.resume_engine()
            else:
                client.start_engine(wait_seconds=0.0)

    def end(self) -> None:
        """Kill all processes that still run."""
        for process in [*self.clients.values(), *filter(None, [self.gateway])]:
            if process.poll() is None:
                process.kill()
            process.wait()


if __name__ == "__main__":
    serve_gateway(*sys.argv[1:])
