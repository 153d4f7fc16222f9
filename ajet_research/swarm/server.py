"""The swarm server of a trial: ``ajet serve`` in a process that ends with the trial."""

from __future__ import annotations

import json
import os
import secrets
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from agentjet.client import SwarmClient
from agentjet.local.processes import child_environment
from ajet_core.errors import WorkerError
from ajet_core.files import lock_file, read_json
from ajet_core.protocol import RunConfig, ServerState
from ajet_installation.local_workers import server_pythons, worker_settings
from ajet_research.swarm.records import SERVER, STORE_FILE

LOG = "server.log"
MAX_REWARD = 1e6
"""The largest absolute value of a reward that the server of a trial accepts."""
_LOCK = "server.lock"
_BOOT_SECONDS = 900.0
_STOP_SECONDS = 30.0
_TURN = 0.05
_SHOWN_LINES = 5


class TrialServer:
    """A swarm server for the length of a ``with`` block, with all its files in a directory.

    If its predecessor was killed, it resumes the run. Unlike a `LocalServer`, it is in the process
    group of the trial, so that nothing writes to the store of a trial that was killed at its
    limit; it waits for its predecessor's end; and it has nothing of the user's settings but the
    interpreters of workers, so that its store is always the same.

    :raises WorkerError: it ended instead of listening.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._run_dir = directory / SERVER
        self.control_token = secrets.token_urlsafe(32)
        self.client_token = secrets.token_urlsafe(32)

    def __enter__(self) -> Self:
        self._run_dir.mkdir(exist_ok=True)
        lock = self._locked()
        # A killed server's file may have a port that another process uses by now.
        self._note.unlink(missing_ok=True)
        command = ["-m", "ajet_cli.main", "serve", "--host", "127.0.0.1", "--port", "0"]
        command += ["--run-dir", str(self._run_dir.resolve())]
        command += ["--model-root", str(self._directory.resolve())]
        with (self._directory / LOG).open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - this program
                [sys.executable, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._run_dir,
                env=self._environment(),
                # The server holds the lock as long as it lives.
                pass_fds=[lock],
            )
        os.close(lock)
        try:
            while not self._note.exists():
                self.check()
                time.sleep(_TURN)
            self.url = str(read_json(self._note)["url"])
            self.control = SwarmClient(self.url, self.control_token)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.control.close()
        self._end()
        if error is None:
            self._close_store()

    def start(self, config: RunConfig) -> str:
        """Start the run, unless it was begun; return why it is paused, "" if it is not."""
        status = self.control.status()
        if status.state is ServerState.OFFLINE:
            self.control.sync_train_config(config)
        if status.state is not ServerState.PAUSED:
            self.control.start_engine(_BOOT_SECONDS)
        return self.control.status().paused or ""

    def check(self) -> None:
        """Check that the server runs.

        :raises WorkerError: it has ended.
        """
        if (status := self._process.poll()) is not None:
            how = f"exit status {status}" if status >= 0 else signal.Signals(-status).name
            log = (self._directory / LOG).read_text(encoding="utf-8", errors="replace")
            last = " | ".join(log.strip().splitlines()[-_SHOWN_LINES:])
            raise WorkerError(f"the server of the trial ended with {how}: {last}")

    @property
    def _note(self) -> Path:
        return self._run_dir / "server.json"

    def _locked(self) -> int:
        """Wait until no server of an earlier attempt lives; return the lock's descriptor."""
        while True:
            with suppress(BlockingIOError):
                return lock_file(self._directory / _LOCK)
            time.sleep(_TURN)

    def _environment(self) -> dict[str, str]:
        return child_environment(
            AJET_SERVER__CONTROL_TOKEN=self.control_token,
            AJET_SERVER__CLIENT_TOKEN=self.client_token,
            AJET_SERVER__BOOT_TIMEOUT_SECONDS=str(_BOOT_SECONDS),
            AJET_SERVER__MAX_REWARD=str(MAX_REWARD),
            AJET_STORE=json.dumps({"name": "sqlite", "settings": {"synchronous": "NORMAL"}}),
            AJET_WORKERS=worker_settings(self._run_dir).model_dump_json(),
            AJET_SERVERS=json.dumps(server_pythons()),
            XDG_STATE_HOME=str(self._run_dir.resolve() / "state"),
            HF_HUB_OFFLINE="1",
            TOKENIZERS_PARALLELISM="false",
        )

    def _end(self) -> None:
        """End the server cleanly, which closes its store, or kill it."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _close_store(self) -> None:
        """Leave one file without a log, beside which readers such as `ajet inspect` create none."""
        with closing(sqlite3.connect(self._run_dir / STORE_FILE)) as store:
            store.execute("PRAGMA journal_mode = DELETE")
