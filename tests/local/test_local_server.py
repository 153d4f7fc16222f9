"""Servers and other child processes of one program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentjet.client import AsyncSwarmClient, SwarmClient
from agentjet.local import LocalServer
from agentjet.local.processes import Child, child_environment
from ajet_core.errors import AjetError, ConfigError, ForbiddenError, WorkerError
from ajet_core.protocol import RunConfig, ServerState
from ajet_installation.settings import Settings, WorkerSettings
from ajet_testing.servers import write_scripted_model

pytestmark = pytest.mark.processes


def child(tmp_path: Path, code: str, *, read: bool = False) -> Child:
    return Child(
        "helper",
        ["-c", code],
        log=tmp_path / "helper.log",
        cwd=tmp_path,
        environment=os.environ,
        read=read,
    )


def test_a_childs_lines_are_read(tmp_path: Path) -> None:
    started = child(tmp_path, "print('one'); print('two')", read=True)
    assert list(started.lines) == ["one\n", "two\n"]
    assert started.wait() == 0
    started.end()


def test_a_child_ends_with_its_parent_that_is_killed(tmp_path: Path) -> None:
    """The child holds a named pipe open, which ends when the child is gone."""
    pipe = tmp_path / "alive"
    os.mkfifo(pipe)
    code = (
        "import signal\n"
        "from agentjet.local.processes import end_with_parent\n"
        f"alive = open({str(pipe)!r}, 'w')\n"
        "end_with_parent()\n"
        "print('ready', file=alive, flush=True)\n"
        "signal.pause()\n"
    )
    parent = (
        "import os, signal\n"
        "from pathlib import Path\n"
        "from agentjet.local.processes import Child\n"
        f"here = Path({str(tmp_path)!r})\n"
        f"Child('c', ['-c', {code!r}], log=here / 'log', cwd=here, environment=os.environ)\n"
        "signal.pause()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", parent])
    try:
        with pipe.open(encoding="utf-8") as alive:
            assert alive.readline() == "ready\n"
            process.kill()
            assert alive.read() == ""
    finally:
        process.kill()
        process.wait()


def test_a_line_that_the_parent_sends_arrives_once(tmp_path: Path) -> None:
    code = (
        "from agentjet.local.processes import end_with_parent\n"
        "print(end_with_parent().result(), flush=True)\n"
        "import signal; signal.pause()\n"
    )
    with child(tmp_path, code, read=True) as started:
        started.send("http://127.0.0.1:1")
        started.send("a second line")
        assert next(started.lines) == "http://127.0.0.1:1\n"


def test_a_line_to_a_child_that_has_ended_is_lost(tmp_path: Path) -> None:
    with child(tmp_path, "pass") as started:
        started.wait()
        started.send("too late")


def test_the_address_of_the_live_page_logs_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a display no browser is opened, and the address is shown."""
    for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    with LocalServer(tmp_path) as server:
        address = server.open_page().partition("the live page: ")[2]
        url, _, token = address.partition("/ui/#token=")
        assert url == server.client.url
        with SwarmClient(url, token) as viewer:
            assert viewer.status().state is ServerState.OFFLINE
            with pytest.raises(ForbiddenError):
                viewer.pause_engine()


def test_a_server_ends_with_its_program(tmp_path: Path) -> None:
    with LocalServer(tmp_path) as server:
        assert server.client.status().state is ServerState.OFFLINE
        # As when the program is killed.
        standard_input = server.child._process.stdin
        assert standard_input is not None
        standard_input.close()
        assert server.child.wait() == 0


def test_a_crash_shows_the_last_lines_of_this_start_alone(tmp_path: Path) -> None:
    (tmp_path / "helper.log").write_text("of an earlier session\n")
    started = child(tmp_path, "import sys; [print(i, file=sys.stderr) for i in range(50)]; 1 / 0")
    started.wait()
    with pytest.raises(WorkerError, match="exit status 1") as caught:
        started.check()
    assert "ZeroDivisionError" in caught.value.message
    assert "earlier session" not in caught.value.message
    assert "\n  10\n" not in caught.value.message
    assert str(tmp_path / "helper.log") in caught.value.message


def test_a_running_child_passes_the_check_and_ends_when_asked(tmp_path: Path) -> None:
    started = child(tmp_path, "input = __import__('signal').pause()")
    started.check()
    started.end()
    assert started.poll() == -signal.SIGTERM


def test_a_child_that_will_not_end_is_killed(tmp_path: Path) -> None:
    code = (
        "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print('deaf', flush=True); signal.pause(); signal.pause()"
    )
    started = child(tmp_path, code, read=True)
    assert next(started.lines) == "deaf\n"
    started.end(grace=0.05)
    assert started.poll() == -signal.SIGKILL


def test_children_do_not_see_the_users_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AJET_SERVER__PORT", "1")
    found = child_environment(AJET_TOKEN="t")
    assert {k: v for k, v in found.items() if k.startswith("AJET_")} == {"AJET_TOKEN": "t"}


def test_the_server_gets_the_store_and_the_loggers_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[dict[str, str]] = []

    class Recorded(Child):
        def __init__(self, *_: Any, environment: Mapping[str, str], **__: Any) -> None:
            started.append(dict(environment))

        def end(self, grace: float = 0.0) -> None:
            pass

    monkeypatch.setattr("agentjet.local.server.Child", Recorded)
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("AJET_")]:
        monkeypatch.delenv(name)
    (tmp_path / "ajet.toml").write_text(
        '[server]\nport = 1234\n[store]\nretry_seconds = 7\nsettings = {file = "mine.sqlite3"}\n'
        '[loggers.jsonl]\nfile = "my.jsonl"\n[plugins]\nblocked = ["echo"]\n'
    )
    with LocalServer(tmp_path, workers=WorkerSettings()):
        pass
    (environment,) = started
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "ajet.toml").unlink()
    settings = Settings()
    assert settings.store.settings == {"file": "mine.sqlite3"}
    assert settings.store.retry_seconds == 7
    assert settings.loggers == {"jsonl": {"file": "my.jsonl"}}
    assert list(settings.plugins.blocked) == ["echo"]
    # Everything else is the server's own.
    assert settings.server.port != 1234


async def test_a_server_without_a_block_is_reached_by_each_kind_of_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = LocalServer(tmp_path / "new" / "run").start()
    try:
        async with server.async_client() as client:
            assert (await client.status()).state is ServerState.OFFLINE
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        with SwarmClient() as other:
            assert other.url == server.client.url
        async with AsyncSwarmClient(server.client.url, server.client_token) as limited:
            with pytest.raises(AjetError, match="control"):
                await limited.stop_engine()
        assert (server.run_dir / "server.json").is_file()
    finally:
        server.close()
    assert server.child.poll() == 0


def test_models_may_be_elsewhere_and_a_started_server_is_not_started_again(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_scripted_model(models / "tiny")
    with LocalServer(tmp_path / "run", models=models).start() as server:
        pid = server.child.pid
        config = {"model": {"path": str(models / "tiny"), "renderer": "qwen3"}}
        server.client.sync_train_config(RunConfig.model_validate(config))
        with pytest.raises(ConfigError, match="model"):
            server.client.sync_train_config(
                RunConfig.model_validate({"model": {"path": str(tmp_path / "run")}})
            )
        assert server.child.pid == pid
