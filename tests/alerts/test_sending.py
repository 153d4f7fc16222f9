"""Real commands and real webhooks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ajet_cli.main import cli
from ajet_core.protocol import Finding
from ajet_installation.settings import AlertSettings, Settings
from ajet_server.alerts import sending
from ajet_server.alerts.redacting import Redactor
from ajet_server.alerts.sending import Alert, AlertFailedError, send
from ajet_testing.servers import CLIENT, ServerFactory
from tests.support.runs import status
from tests.support.served_processes import call, serving

pytestmark = pytest.mark.processes

FINDING = Finding(code="kl", message="it rose", seconds=1.0, stuck=True)
REDACT = Redactor(Settings(), {})
ALERT = Alert.of(FINDING, REDACT, run_id="r", step=2)

WRITER = """
import json, os, sys
json.dump({"alert": json.load(sys.stdin), "environ": dict(os.environ)}, open(sys.argv[1], "w"))
"""

DETACHING = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
sys.exit((print(child.pid, file=sys.stderr), 3)[1])
"""


def python(source: str, *arguments: str, **settings: Any) -> AlertSettings:
    return AlertSettings(command=[sys.executable, "-c", source, *arguments], **settings)


@dataclass
class Hook:
    """A server on loopback that keeps what is posted.

    :param answer: the status line and headers of all answers; "" for silence.
    """

    answer: str = "HTTP/1.1 204 No Content"
    url: str = ""
    posted: list[dict[str, Any]] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[Hook]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next(
                int(line.partition(":")[2])
                for line in head.lower().splitlines()
                if line.startswith("content-length")
            )
            self.heads.append(head)
            self.posted.append(json.loads(await reader.readexactly(length)))
            self.arrived.set()
            if self.answer:
                writer.write(f"{self.answer}\r\ncontent-length: 0\r\n\r\n".encode())
                await writer.drain()
            else:
                await reader.read()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/SECRETPART"
        try:
            yield self
        finally:
            server.close()


async def test_a_command_gets_the_alert_and_no_secret_of_the_environment(tmp_path: Path) -> None:
    environ = {**os.environ, "OPENAI_API_KEY": "sk-1", "AJET_TOKEN": "t", "ROOM": "ops"}
    recipient = python(WRITER, str(tmp_path / "got"), environment=["ROOM"])
    await send(ALERT, recipient, REDACT, environ=environ)
    got = json.loads((tmp_path / "got").read_text())
    assert got["alert"]["text"] == "agentjet run r, step 2: kl: it rose"
    assert got["environ"]["ROOM"] == "ops"
    names = set(got["environ"]) - {"LC_CTYPE"}
    assert names <= {"PATH", "HOME", "LANG", "TMPDIR", "ROOM"}


async def test_arguments_are_not_read_by_a_shell(tmp_path: Path) -> None:
    await send(ALERT, python(WRITER, str(tmp_path / "a; touch b")), REDACT)
    assert [path.name for path in tmp_path.iterdir()] == ["a; touch b"]


@pytest.mark.parametrize(
    ("recipient", "problem"),
    [
        (AlertSettings(command=["/no/such/program"]), "cannot be started"),
        (python("import sys; sys.exit('no route')"), "status 1: no route"),
        (python("import sys; sys.exit('used sk-1234567890')"), r"used \*\*\*$"),
        # It neither reads what it gets, nor limits what it says.
        (python("import sys; sys.stderr.write('x' * 10**6); sys.exit(3)"), r"status 3: x{500}$"),
    ],
    ids=["missing", "failed", "secret", "talkative"],
)
async def test_a_failing_command_is_explained(recipient: AlertSettings, problem: str) -> None:
    with pytest.raises(AlertFailedError, match=problem):
        await send(ALERT, recipient, REDACT)


async def test_a_command_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    source = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[1], "w").write(f"{os.getpid()} {child.pid}")
child.wait()
"""
    file = tmp_path / "pids"
    sending = asyncio.create_task(
        send(ALERT, python(source, str(file), timeout_seconds=60), REDACT)
    )
    while not file.exists() or len(file.read_text().split()) < 2:
        await asyncio.sleep(0.01)
    sending.cancel()
    await asyncio.wait([sending])
    assert sending.cancelled()
    pids = [int(text) for text in file.read_text().split()]
    await _until(lambda: not any(map(_runs, pids)))


async def test_a_child_in_the_background_does_not_delay_the_end() -> None:
    await send(ALERT, AlertSettings(command=["sh", "-c", "sleep 600 & exit 0"]), REDACT)
    # Nor one that no signal to the group reaches.
    command = [sys.executable, "-c", DETACHING]
    with pytest.raises(AlertFailedError, match=r"status 3: [0-9]+$") as raised:
        await send(ALERT, AlertSettings(command=command), REDACT)
    os.kill(int(str(raised.value).split()[-1]), signal.SIGKILL)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_command_that_cannot_be_ended_is_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cancelled: bool
) -> None:
    killed: list[int] = []

    def refuse(group: int, _: int) -> None:
        killed.append(group)
        raise PermissionError("it runs as another user")

    monkeypatch.setattr(os, "killpg", refuse)
    monkeypatch.setattr(sending, "_END_SECONDS", 0.05)
    source = "import sys, time; open(sys.argv[1], 'w').close(); time.sleep(600)"
    begun = tmp_path / "begun"
    recipient = python(source, str(begun), timeout_seconds=60 if cancelled else 0.2)
    task = asyncio.create_task(send(ALERT, recipient, REDACT))
    if cancelled:
        await _until(begun.exists)
        task.cancel()
    await asyncio.wait([task])
    os.kill(killed[0], signal.SIGKILL)
    assert task.cancelled() == cancelled
    if not cancelled:
        assert isinstance(task.exception(), AlertFailedError)


async def test_a_command_over_its_time_is_a_failure() -> None:
    slow = python("import time; time.sleep(600)", timeout_seconds=0.2)
    with pytest.raises(AlertFailedError, match=r"longer than 0\.2 s"):
        await send(ALERT, slow, REDACT)


async def test_a_webhook_gets_json() -> None:
    async with Hook().listening() as hook:
        await send(ALERT, AlertSettings(url=hook.url), REDACT)
    (posted,) = hook.posted
    assert posted["text"] == "agentjet run r, step 2: kl: it rose"
    assert (posted["code"], posted["stuck"], posted["test"]) == ("kl", True, False)
    assert "content-type: application/json" in hook.heads[0].lower()


async def test_a_redirect_is_not_followed() -> None:
    async with Hook().listening() as other:
        moved = Hook(f"HTTP/1.1 307 Temporary Redirect\r\nlocation: {other.url}")
        async with moved.listening():
            with pytest.raises(AlertFailedError, match="redirect") as raised:
                await send(ALERT, AlertSettings(url=moved.url), REDACT)
    assert other.posted == []
    assert "SECRET" not in str(raised.value)


@pytest.mark.parametrize("answer", ["HTTP/1.1 500 Oops", "HTTP/1.1 404 Not Found", "nonsense"])
async def test_an_answer_that_is_no_success_is_a_failure(answer: str) -> None:
    async with Hook(answer).listening() as hook:
        with pytest.raises(AlertFailedError) as raised:
            await send(ALERT, AlertSettings(url=hook.url), REDACT)
    assert "SECRET" not in str(raised.value)


async def test_a_silent_webhook_is_given_up() -> None:
    async with Hook("").listening() as hook:
        with pytest.raises(AlertFailedError, match="longer than"):
            await send(ALERT, AlertSettings(url=hook.url, timeout_seconds=0.3), REDACT)


async def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/SECRETPART"
        with pytest.raises(AlertFailedError, match="cannot be reached") as raised:
            await send(ALERT, AlertSettings(url=url), REDACT)
    assert "SECRET" not in str(raised.value)


async def test_a_spent_budget_alerts_and_training_does_not_wait(servers: ServerFactory) -> None:
    async with Hook("").listening() as silent, Hook().listening() as hook:
        recipients = [
            {"url": silent.url},
            {"url": hook.url, "findings": ["budget_*"]},
        ]
        async with servers.running(alerts=recipients, stuck_seconds=0.05) as server:
            await server.roll(budget={"usd": 1.0})
            body = {"report_id": "0" * 32, "usd": 2.0}
            await server.http.post("/v1/spending", headers=CLIENT, json=body)
            await hook.arrived.wait()
            assert (await status(server))["spending"]["usd"] == 2.0
    assert [posted["code"] for posted in hook.posted] == ["budget_spent"]


async def test_a_killed_server_calls_once_and_logs_no_url(model_dir: Path, tmp_path: Path) -> None:
    async with Hook().listening() as hook:
        alerts = json.dumps([{"url": hook.url, "findings": ["paused"]}])
        env = {"AJET_ALERTS": alerts, "AJET_SERVER__LOG_LEVEL": "debug"}
        record = tmp_path / "run" / "alerts.json"
        async with serving(tmp_path / "run", model_dir, **env) as (server, http):
            config = {
                "model": {"path": str(model_dir), "renderer": "qwen3"},
                "engine": {"name": "scripted"},
                "trainer": {"name": "scripted"},
            }
            await call(http, "PUT", "/v1/run", config)
            await call(http, "POST", "/v1/run/start", {"wait_seconds": 60})
            await call(http, "POST", "/v1/run/pause", {"reason": "lunch"})
            await hook.arrived.wait()
            await _until(lambda: record.exists() and "paused" in record.read_text())
            server.process.kill()
            await server.process.wait()
            assert b"SECRETPART" not in server.output
        more = json.dumps(
            [
                {"url": hook.url, "findings": ["paused"]},
                {"url": f"{hook.url}-2", "findings": ["paused"]},
            ]
        )
        hook.arrived.clear()
        async with serving(tmp_path / "run", model_dir, **{**env, "AJET_ALERTS": more}):
            # The second recipient is new: once it was called, the first one would have been too.
            await hook.arrived.wait()
    assert [head.split()[1] for head in hook.heads] == ["/SECRETPART", "/SECRETPART-2"]


async def test_a_test_alert_reaches_all_and_failures_are_told(tmp_path: Path) -> None:
    async with Hook().listening() as hook:
        config = tmp_path / "ajet.toml"
        config.write_text(
            f'[[alerts]]\nurl = "{hook.url}"\n\n[[alerts]]\ncommand = ["/no/such/program"]\n'
        )
        result = await asyncio.to_thread(
            CliRunner().invoke, cli, ["alert", "--config", str(config)], prog_name="ajet"
        )
    assert result.exit_code == 1
    assert "alert 1 (url): sent" in result.stdout
    assert "alert 2 (command /no/such/program): the command cannot be started" in result.stdout
    assert [posted["test"] for posted in hook.posted] == [True]


def test_without_alerts_there_is_none_to_test(tmp_path: Path) -> None:
    config = tmp_path / "ajet.toml"
    config.write_text("")
    result = CliRunner().invoke(cli, ["alert", "--config", str(config)], prog_name="ajet")
    assert result.exit_code == 2
    assert "[[alerts]]" in result.stderr


def _runs(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    # A zombie has ended; who adopts it may take its time.
    return text.rpartition(")")[2].split()[0] != "Z"


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.01)
