"""`ajet engine`, in this process."""

from __future__ import annotations

import json
import sys

import pytest
from click.testing import CliRunner, Result

from ajet_cli.commands import engine as _engine_command  # noqa: F401  (imported before it is patched)
from ajet_cli.main import cli
from ajet_core.protocol import EngineServers

pytestmark = pytest.mark.processes

A = "http://10.0.0.5:8000"


class FakeClient:
    """A server with one model server; another one is up after two looks, or fails."""

    servers: dict[str, str]
    becomes = "up"
    looks = 0

    def __init__(self, url: str, token: str | None, *, retries: int) -> None:
        pass

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def engine_servers(self) -> EngineServers:
        cls = type(self)
        cls.looks += 1
        if self.servers.get(A) == "starting" and self.looks >= 2:
            self.servers[A] = self.becomes
        return EngineServers(servers=self.servers)

    def add_engine_server(self, url: str) -> EngineServers:
        self.servers[url.rstrip("/").lower()] = "starting"
        return EngineServers(servers=self.servers)

    def remove_engine_server(self, url: str) -> EngineServers:
        del self.servers[url]
        return EngineServers(servers=self.servers)


@pytest.fixture(autouse=True)
def server(monkeypatch: pytest.MonkeyPatch) -> type[FakeClient]:
    FakeClient.servers, FakeClient.becomes, FakeClient.looks = {"server 0": "up"}, "up", 0
    module = sys.modules["ajet_cli.commands.engine"]
    monkeypatch.setattr(module, "SwarmClient", FakeClient)
    monkeypatch.setattr(module, "_POLL_SECONDS", 0)
    return FakeClient


def ajet(*args: str) -> Result:
    return CliRunner().invoke(cli, ["engine", *args])


def test_list_shows_the_state_of_each_server() -> None:
    listed = ajet("list")
    assert listed.exit_code == 0
    assert [line.split() for line in listed.output.splitlines()] == [
        ["server", "state"],
        ["server", "0", "up"],
    ]
    assert json.loads(ajet("list", "--json").output) == {"servers": {"server 0": "up"}}


def test_add_waits_until_the_server_is_up() -> None:
    added = ajet("add", f"{A.upper()}/", "--json")
    assert added.exit_code == 0, added.output
    assert json.loads(added.stdout) == {"servers": {"server 0": "up", A: "up"}}
    assert ajet("remove", A).exit_code == 0
    assert FakeClient.servers == {"server 0": "up"}


def test_add_fails_if_the_server_does() -> None:
    FakeClient.becomes = "no model server responded"
    added = ajet("add", A)
    assert added.exit_code == 1
    assert "no model server responded" in added.output


def test_add_need_not_wait() -> None:
    added = ajet("add", A, "--no-wait", "--json")
    assert added.exit_code == 0
    assert json.loads(added.stdout)["servers"][A] == "starting"
