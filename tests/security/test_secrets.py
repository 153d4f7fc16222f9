"""No secret appears in logs, errors, events, the audit log, the run directory or a worker."""

from __future__ import annotations

import asyncio
import json
import secrets
from pathlib import Path
from typing import Any

import httpx2
import pytest

from ajet_installation.settings import Settings
from ajet_server.build import build_service
from ajet_testing.plugins import scripted_plugins
from ajet_testing.servers import bearer
from tests.support.scripted_server import ServerProcess, server_process

pytestmark = pytest.mark.processes


class Session:
    """Uses each feature of a server, and keeps its answers and the secrets."""

    def __init__(self, server: ServerProcess, model_dir: Path, control: str, client: str) -> None:
        self.server = server
        self.secrets = {control, client}
        self.answers: list[str] = []
        self.events: list[str] = []
        self.workers: list[int] = []
        self._control, self._client = bearer(control), bearer(client)
        self._model_dir = model_dir
        self._http = httpx2.AsyncClient(base_url=server.url, timeout=60.0)

    async def call(
        self, method: str, path: str, headers: dict[str, str], body: Any = None
    ) -> httpx2.Response:
        answer = await self._http.request(method, path, headers=headers, json=body)
        # A grant holds a key, and a new token its secret, for whom they are meant.
        if answer.status_code >= 400 or path not in ("/v1/episodes", "/v1/tokens"):
            self.answers.append(f"{answer.status_code} {dict(answer.headers)} {answer.text}")
        return answer

    async def run(self) -> None:
        async with self._http:
            await self._listen()

    async def _listen(self) -> None:
        reading = asyncio.create_task(self._read_events())
        try:
            await self._do()
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read_events(self) -> None:
        headers = {**self._control, "last-event-id": "0"}
        async with self._http.stream("GET", "/v1/events", headers=headers) as answer:
            async for line in answer.aiter_lines():
                self.events.append(line)
                if '"pids"' in line:
                    self.workers += json.loads(line.removeprefix("data: "))["data"]["pids"]

    async def _do(self) -> None:
        control, client = self._control, self._client
        made = await self.call("POST", "/v1/tokens", control, {"name": "alice"})
        alice = bearer(made.json()["token"])
        self.secrets.add(made.json()["token"])
        for scope in ("view", "control"):
            other = await self.call("POST", "/v1/tokens", control, {"name": scope, "scope": scope})
            self.secrets.add(other.json()["token"])
        await self.call("POST", "/v1/tokens", control, {"name": "alice"})
        await self.call("GET", "/v1/tokens", control)
        await self.call("PUT", "/v1/run", control, self._config({"path": "/etc"}))
        await self.call("PUT", "/v1/run", control, self._config({"path": str(self._model_dir)}))
        await self.call("PUT", "/v1/run", client, self._config({"path": str(self._model_dir)}))
        await self.call("POST", "/v1/run/start", control, {"wait_seconds": 60})
        keys = []
        for headers in (alice, client, control):
            claim_id = secrets.token_urlsafe(32)
            self.secrets.add(claim_id)
            claim = {"task_id": "a", "claim_id": claim_id}
            for _ in range(2):
                grant = (await self.call("POST", "/v1/episodes", headers, claim)).json()
            await self.call("POST", "/v1/episodes", alice, {**claim, "lease_seconds": -1})
            self.secrets.add(grant["api_key"])
            keys.append((headers, grant))
        for headers, grant in keys:
            key = bearer(grant["api_key"])
            url = f"/v1/episodes/{grant['episode_id']}"
            chat = {"messages": [{"role": "user", "content": "hello"}]}
            # The scripted engine fails at the second call.
            for body in (chat, chat, {**chat, "stream": True}, {**chat, "n": 0}, {"messages": 1}):
                await self.call("POST", "/v1/chat/completions", key, body)
            await self.call("GET", "/v1/models", key)
            await self.call("GET", "/v1/status", key)
            await self.call("POST", "/v1/chat/completions", headers, chat)
            await self.call("POST", f"{url}/heartbeat", headers)
            await self.call("POST", f"{url}/end", headers, {"reward": "x"})
            await self.call("POST", f"{url}/end", headers, {"reward": 1.0})
            await self.call("GET", url, headers)
            await self.call("GET", f"/v1/timelines/{grant['episode_id']}", control)
            await self.call("POST", "/v1/chat/completions", key, chat)
        # Mistyped, in the wrong place, or sent to the wrong route.
        for secret in list(self.secrets):
            for wrong in (bearer(secret[:-1]), bearer(secret + "x"), {"x-api-key": secret[:-2]}):
                await self.call("GET", "/v1/status", wrong)
                await self.call("POST", "/v1/chat/completions", wrong, {"messages": []})
            await self.call("GET", "/v1/status", {"cookie": f"token={secret}"})
            await self.call("GET", f"/v1/status?token={secret}", {})
            await self.call("GET", "/v1/status", {"authorization": f"Basic {secret}"})
            await self.call("GET", "/v1/status", {**client, "x-ajet-protocol": "7.0"})
        await self.call("GET", "/v1/status", control)
        for info in (await self.call("GET", "/v1/tokens", control)).json()["tokens"]:
            await self.call("DELETE", f"/v1/tokens/{info['token_id']}", control)
        await self.call("GET", "/v1/status", alice)
        self.processes = {pid: _process(pid) for pid in self.workers}
        await self.call("POST", "/v1/run/stop", control)
        await self.call("POST", "/v1/run/stop", client)

    def _config(self, model: dict[str, str]) -> dict[str, Any]:
        return {
            "model": {"renderer": "qwen3", **model},
            "engine": {"name": "scripted", "settings": {"raises_at": 2}},
            "trainer": {"name": "scripted"},
            "batch": {"tasks": 8, "episodes_per_task": 8},
        }


def _process(pid: int) -> bytes:
    """Command line and environment of a process."""
    root = Path("/proc") / str(pid)
    return (root / "cmdline").read_bytes() + b"\n" + (root / "environ").read_bytes()


@pytest.fixture
async def session(tmp_path: Path, model_dir: Path) -> Session:
    control, client = "control-" + secrets.token_hex(16), "client-" + secrets.token_hex(16)
    async with server_process(
        tmp_path / "run",
        AJET_SERVER__CONTROL_TOKEN=control,
        AJET_SERVER__CLIENT_TOKEN=client,
        AJET_CLIENT__TOKEN=control,
        AJET_TOKEN=control,
        AJET_SERVER__LOG_LEVEL="debug",
        AJET_SERVER__MODEL_ROOTS=json.dumps([str(model_dir.parent)]),
    ) as server:
        done = Session(server, model_dir, control, client)
        await done.run()
        cmdline = _process(server.process.pid).partition(b"\n")[0]
        assert control.encode() not in cmdline
    assert server.process.returncode == 0, server.output.decode()
    return done


async def test_no_secret_is_anywhere_it_does_not_belong(session: Session) -> None:
    server = session.server
    said = "\n".join(session.answers).encode()
    places = {
        "output": bytes(server.output),
        "answers": said,
        "events": "\n".join(session.events).encode(),
        **{f"worker {pid}": text for pid, text in session.processes.items()},
        **{
            str(path.relative_to(server.run_dir)): path.read_bytes()
            for path in server.run_dir.rglob("*")
            if path.is_file()
        },
    }
    assert {"tokens.json", "audit.jsonl", "samples.sqlite3", "logs/worker.log"} <= set(places)
    assert session.processes
    assert b'"episode"' in places["events"]
    assert b"401 " in said
    assert b"engine_error" in said
    assert len(session.secrets) == 2 + 3 + 6
    for secret in session.secrets:
        # Public parts of keys and tokens may be seen; what follows them may not, nor a beginning of
        # it.
        hidden = secret.rpartition(".")[2].encode()
        for name, content in places.items():
            assert hidden not in content, name
            assert hidden[: len(hidden) * 2 // 3] not in content, name


async def test_files_of_a_run_that_could_tell_are_for_their_owner_alone(session: Session) -> None:
    for name in ("tokens.json", "audit.jsonl"):
        assert (session.server.run_dir / name).stat().st_mode & 0o077 == 0, name


def test_a_run_directory_that_a_server_makes_is_its_owners_alone(tmp_path: Path) -> None:
    made, there = tmp_path / "made", tmp_path / "there"
    there.mkdir(mode=0o755)
    for run_dir in (made, there):
        build_service(Settings(server={"run_dir": run_dir}), scripted_plugins())
    assert made.stat().st_mode & 0o777 == 0o700
    assert there.stat().st_mode & 0o777 == 0o755
