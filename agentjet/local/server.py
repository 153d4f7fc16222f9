"""A swarm server as a child process on a free port of this machine."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self

from agentjet.client import AsyncSwarmClient, SwarmClient, TokenClient
from agentjet.local.processes import Child, child_environment
from ajet_core.credentials import STATE
from ajet_core.errors import AjetError, DeadlineError, StateError
from ajet_core.files import read_json
from ajet_core.protocol import RunConfig, ServerState
from ajet_installation.local_workers import server_pythons, worker_settings
from ajet_installation.settings import Settings, WorkerSettings

# On a busy machine, imports take minutes.
START_SECONDS = 300.0
BOOT_SECONDS = 900.0
STOP_SECONDS = 120.0
# Ctrl-C must be quick; without a clean stop's checkpoint the last few steps are repeated.
INTERRUPT_SECONDS = 20.0
POLL_SECONDS = 0.05


class LocalServer:
    """``ajet serve`` on this machine, until `close` or the end of a ``with`` block.

    ```python
    with LocalServer("runs/first") as server:
        train(solve, tasks, client=server.client, config=config)
    ```

    It also ends when this process ends, also if this process is killed. It listens on a free port
    of 127.0.0.1 with new tokens. Of the user's settings it has those of the store, the loggers,
    blocked plugins, environments and interpreters, and the number of processes.

    :param run_dir: a directory for all its files, which are in ``<run_dir>/server``; it is created
        if it is missing. A server continues the run of its directory, so a run that shall begin
        with other weights or settings needs another directory.
    :param models: the directory that the models of runs are in; by default `run_dir`.
    :param workers: interpreters of components, and the directory of environments.
    """

    def __init__(
        self,
        run_dir: str | Path,
        *,
        models: str | Path | None = None,
        workers: WorkerSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._run_dir = Path(run_dir).resolve()
        self._directory = self._run_dir / "server"
        self._models = self._run_dir if models is None else Path(models).resolve()
        self._workers = workers or worker_settings(self._run_dir)
        self._clock = clock
        self._sleep = sleep
        self._control_token = secrets.token_urlsafe(32)
        self.client_token = secrets.token_urlsafe(32)
        self._child: Child | None = None
        self._client: SwarmClient | None = None
        self._rolling = False

    @property
    def child(self) -> Child:
        """The server process."""
        assert self._child is not None, "the server is started on entering the block"
        return self._child

    @property
    def client(self) -> SwarmClient:
        """A client with the control token; waits until the server listens.

        :raises WorkerError: the server ended instead.
        """
        if self._client is None:
            self._client = SwarmClient(self._wait_for_url(), self._control_token)
        return self._client

    def observer(self) -> SwarmClient:
        """Create a client for following events; it fails soon after the server has ended."""
        return SwarmClient(self.client.url, self._control_token, retries=1)

    def open_page(self) -> str:
        """Open the live page in a browser; return what to show: where it is."""
        with closing(TokenClient(self.client.url, self._control_token, retries=1)) as tokens:
            page = tokens.issue_page()
        if page.open(self._directory / STATE / "page.html"):
            return f"opened {page.url}/ui/ in a browser"
        return f"no browser can be opened here; the live page: {page.address}"

    @property
    def run_dir(self) -> Path:
        """The server's own run directory, for `ajet inspect` and `ajet report`."""
        return self._directory

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables with which `ajet` and clients of other programs find the server."""
        return {"AJET_URL": self.client.url, "AJET_TOKEN": self._control_token}

    def async_client(self) -> AsyncSwarmClient:
        """Create an asynchronous client with the control token."""
        return AsyncSwarmClient(self.client.url, self._control_token)

    def __enter__(self) -> Self:
        return self if self._child is not None else self.start()

    def start(self) -> Self:
        """Start the server; it listens as soon as `client` is first used."""
        self._directory.mkdir(parents=True, exist_ok=True)
        settings = Settings()
        # A file left by a killed server may have a port that another process uses by now.
        self._note.unlink(missing_ok=True)
        self._child = Child(
            "server",
            [
                "-m",
                "agentjet.local.lifeline",
                "ajet_cli.main",
                "serve",
                "--host",
                "127.0.0.1",
                "--port",
                "0",
                "--run-dir",
                str(self._directory),
                "--model-root",
                str(self._models),
            ],
            log=self._run_dir / "server.log",
            cwd=self._directory,
            environment=child_environment(
                AJET_SERVER__CONTROL_TOKEN=self._control_token,
                AJET_SERVER__CLIENT_TOKEN=self.client_token,
                AJET_WORKERS=self._workers.model_dump_json(),
                AJET_SERVERS=json.dumps(server_pythons()),
                AJET_SERVER__PROCESSES=str(settings.server.processes),
                AJET_STORE=settings.store.model_dump_json(),
                AJET_LOGGERS=json.dumps(settings.loggers, default=str),
                AJET_PLUGINS=settings.plugins.model_dump_json(),
                XDG_STATE_HOME=str(self._directory / STATE),
                AJET_SERVER__BOOT_TIMEOUT_SECONDS=str(BOOT_SECONDS),
                HF_HUB_OFFLINE="1",
                TOKENIZERS_PARALLELISM="false",
            ),
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if isinstance(error, KeyboardInterrupt) and self._rolling and self._client is not None:
                self._client.stop_engine(INTERRUPT_SECONDS)
        except AjetError as second:
            assert error is not None, "only an interrupt stops the run here"
            error.add_note(f"(the run was not stopped properly: {second.message})")
        finally:
            self.close()

    def close(self) -> None:
        """End the server. Its files stay; a new server on the same directory continues its run."""
        if self._client is not None:
            self._client.close()
        self.child.end()

    def start_run(self, config: RunConfig) -> None:
        """Configure and start the run, and wait until episodes can be claimed.

        If the server has resumed a run after the last session was killed, only wait.
        """
        try:
            if self.client.status().state is ServerState.OFFLINE:
                self.client.sync_train_config(config)
            self.client.start_engine(BOOT_SECONDS)
        except AjetError:
            # If the process has ended, its log is more useful than a refused connection.
            self.child.check()
            raise
        self._rolling = True

    def stop_run(self) -> Path:
        """Stop the run, and return the directory of the exported model.

        :raises StateError: the server exported no model.
        """
        status = self.client.stop_engine(STOP_SECONDS)
        self._rolling = False
        if status.export_dir is None:
            raise StateError("the server stopped the run without exporting its model")
        return Path(status.export_dir)

    @property
    def _note(self) -> Path:
        return self._directory / "server.json"

    def _wait_for_url(self) -> str:
        deadline = self._clock() + START_SECONDS
        while not self._note.exists():
            self.child.check()
            if self._clock() > deadline:
                raise DeadlineError(
                    f"the server did not start listening within {START_SECONDS:g} s; "
                    "its last lines:\n"
                    f"{self.child.tail()}"
                )
            self._sleep(POLL_SECONDS)
        return str(read_json(self._note)["url"])
