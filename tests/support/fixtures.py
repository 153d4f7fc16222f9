"""Fixtures of several folders: servers, and what their workers run in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from ajet_testing.servers import Running, ServerFactory, write_scripted_model
from ajet_testing.worker_tasks import work_in_process


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory whose tokenizer is real; the scripted engine reads no weights."""
    return write_scripted_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def worker_processes() -> None:
    """Make the workers of `servers` processes, as an operator's are: they can be killed."""


@pytest.fixture
def workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of servers are tasks of this process, unless the test takes `worker_processes`."""
    if "worker_processes" not in request.fixturenames:
        work_in_process(monkeypatch)


@pytest.fixture
def servers(workers: None, model_dir: Path, tmp_path: Path) -> ServerFactory:
    """Makes servers on one run directory; a second one stands for a restart."""
    return ServerFactory(model_dir, tmp_path / "run")


@pytest.fixture
async def server(servers: ServerFactory) -> AsyncIterator[Running]:
    """A server that is OFFLINE."""
    async with servers.running() as running:
        yield running


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A server started by the command line; gives its run directory."""
    pytest.importorskip("ajet_backend_torch")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run_dir = tmp_path / "run"
    command = [sys.executable, "-m", "ajet_cli.main", "serve", "--run-dir", str(run_dir)]
    process = subprocess.Popen(
        [*command, "--port", "0"], stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    assert process.stderr is not None
    # The line is logged once the server listens and has left its address.
    for line in process.stderr:
        if "listening on" in line:
            break
    url = json.loads((run_dir / "server.json").read_text())["url"]
    monkeypatch.setenv("AJET_URL", url)
    try:
        yield run_dir
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0
        assert not (run_dir / "server.json").exists()
