"""A real tracking server, which is killed and started again while a run is logged."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from ajet_loggers_mlflow.logger import MlflowLogger
from ajet_loggers_mlflow.settings import MlflowSettings
from mlflow import MlflowClient

from ajet_core.interfaces import LoggedRun, MetricsLogger, WorkerContext
from ajet_core.protocol import RunConfig
from ajet_server.observe.logger_thread import LoggerThread

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

SECONDS = 600.0


class TrackingServer:
    """`mlflow server` on a loopback port that stays the same."""

    def __init__(self, directory: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        arguments = ["--backend-store-uri", f"sqlite:///{self._directory / 'mlflow.db'}"]
        arguments += ["--artifacts-destination", (self._directory / "artifacts").as_uri()]
        arguments += ["--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        with (self._directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "server", *arguments],
                env={
                    **os.environ,
                    "MLFLOW_DISABLE_TELEMETRY": "true",
                    # Its workers would take half of the time of a start.
                    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
                },
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        end = time.monotonic() + SECONDS
        while not self._answers():
            assert self._process.poll() is None, (self._directory / "server.log").read_text()
            assert time.monotonic() < end, "it does not answer"
            threading.Event().wait(0.1)

    def _answers(self) -> bool:
        try:
            return httpx2.get(f"{self.url}/health", timeout=5.0).status_code == 200
        except httpx2.TransportError:
            return False

    def kill(self) -> None:
        """Kill it with its workers."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


@pytest.fixture
def server(tmp_path: Path, empty_database: Path) -> Iterator[TrackingServer]:
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    server = TrackingServer(tmp_path)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def thread(server: TrackingServer, tmp_path: Path) -> Iterator[LoggerThread]:
    """The logger as a server of agentjet calls it."""
    (tmp_path / "run").mkdir()
    context = WorkerContext(tmp_path / "run")
    settings = MlflowSettings(tracking_uri=server.url)
    thread = LoggerThread(
        "logger 'mlflow'", lambda: MlflowLogger(settings, context), limit=10, clock=time.monotonic
    )
    thread.open()
    thread.start(LoggedRun("r1", RunConfig.model_validate({"model": {"path": "/m"}}), 0))
    yield thread
    thread.close()
    assert thread.ended(SECONDS)


def log(thread: LoggerThread, step: int) -> None:
    def call(logger: MetricsLogger) -> None:
        logger.log(step, {"loss": float(step)})

    thread.record(f"log of step {step}", call)


def logged_steps(server: TrackingServer) -> list[int]:
    client = MlflowClient(tracking_uri=server.url)
    experiment = client.get_experiment_by_name("agentjet")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    return [point.step for point in client.get_metric_history(run.info.run_id, "loss")]


def test_records_wait_for_a_server_that_is_soon_there_again(
    server: TrackingServer, thread: LoggerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Enough for a machine on which a start takes minutes.
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "10")
    log(thread, 1)
    assert thread.settled(SECONDS)
    assert logged_steps(server) == [1]
    server.kill()
    for step in (2, 3):
        log(thread, step)
    server.start()
    log(thread, 4)
    assert thread.settled(SECONDS)
    assert logged_steps(server) == [1, 2, 3, 4]
    assert (thread.state().lost, thread.state().error) == (0, "")


def test_a_server_that_stays_away_is_a_failure_until_it_is_there_again(
    server: TrackingServer,
    thread: LoggerThread,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    log(thread, 1)
    assert thread.settled(SECONDS)
    server.kill()
    for step in (2, 3):
        log(thread, step)
    assert thread.settled(SECONDS)
    state = thread.state()
    assert (state.lost, state.waiting) == (2, 0)
    assert state.error.startswith("log of step 3 failed: ")
    assert f"port={server.port}" in state.error
    assert "logger 'mlflow': log of step 2 failed" in caplog.text
    server.start()
    log(thread, 4)
    assert thread.settled(SECONDS)
    assert thread.state().error == ""
    assert logged_steps(server) == [1, 4]
