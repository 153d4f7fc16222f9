"""`/v1/engine/servers`: model servers that are added and removed while a run is active."""

from __future__ import annotations

import json
from pathlib import Path

import httpx2
import pytest

from ajet_core.errors import RequestError
from ajet_core.interfaces import ModelServers
from ajet_server.run.engine_servers import checked_url, read_servers, without, write_servers
from ajet_testing.servers import CLIENT, CONTROL, Running

PATH = "/v1/engine/servers"
A = "http://10.0.0.5:8000"


async def change(
    server: Running, what: str, url: str, headers: dict[str, str] = CONTROL
) -> httpx2.Response:
    return await server.http.post(f"{PATH}/{what}", json={"url": url}, headers=headers)


@pytest.mark.processes
async def test_servers_are_added_listed_and_removed(server: Running) -> None:
    assert (await server.http.get(PATH, headers=CONTROL)).status_code == 409
    await server.roll()
    assert (await change(server, "add", A, headers=CLIENT)).status_code == 403
    both = {"servers": {"server 0": "up", A: "up"}}
    assert (await change(server, "add", f"{A}/")).json() == both
    assert (await change(server, "add", A)).json() == both
    assert (await server.http.get(PATH, headers=CONTROL)).json() == both
    refused = await change(server, "add", "file:///etc/passwd")
    assert refused.status_code == 400
    assert "is not the URL of a model server" in refused.json()["error"]["message"]
    refused = await change(server, "remove", "http://another:1")
    assert (
        "no server http://another:1 was added or configured" in refused.json()["error"]["message"]
    )
    kept = json.loads((server.run_dir / "engine-servers.json").read_text(encoding="utf-8"))
    assert kept["urls"] == [A]
    assert (await change(server, "remove", A)).json() == {"servers": {"server 0": "up"}}


def test_servers_are_kept_for_their_run_alone(tmp_path: Path) -> None:
    configured = ModelServers(api_key="key")
    assert read_servers(tmp_path, "run", configured) == configured
    write_servers(tmp_path, "run", ModelServers(urls=(A,), started=True, api_key="key"))
    changed = read_servers(tmp_path, "run", configured)
    assert (changed.urls, changed.started, changed.api_key) == ((A,), True, "key")
    assert read_servers(tmp_path, "another", configured) == configured
    assert "key" not in (tmp_path / "engine-servers.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "10.0.0.5:8000",
        "ftp://a/b",
        "http://",
        "http://u:p@host",
        "http://:secret@host:1",
        "http://host:99999",
        "http://host/\n",
        "http://ho st",
        "http://host?x=1",
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(RequestError, match="is not the URL of a model server, such as"):
        checked_url(url)


@pytest.mark.parametrize(
    ("url", "same"),
    [
        ("http://Host:80/", "http://host"),
        ("HTTPS://host:443/v1/", "https://host/v1"),
        ("http://[FE80::1]:8000", "http://[fe80::1]:8000"),
    ],
)
def test_one_server_has_one_url(url: str, same: str) -> None:
    assert checked_url(url) == checked_url(same) == same


def test_the_last_server_that_is_up_is_not_removed() -> None:
    with pytest.raises(RequestError, match="the only server that is up"):
        without(A, [A], {A: "up", "http://b": "starting"})
    assert without(A, [A, "http://b"], {A: "up", "http://b": "up"}) == ["http://b"]
    # One that was given up can always be removed.
    assert without(A, [A], {A: "no model server responded", "server 0": "starting"}) == []
