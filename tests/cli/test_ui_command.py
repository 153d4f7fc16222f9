"""``ajet ui``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import unquote

import pytest
from click.testing import CliRunner

from agentjet.client import LivePage
from ajet_cli.main import cli
from ajet_testing.servers import CONTROL, Running, new_token


async def ui(server: Running, *args: str, token: str | None = None) -> tuple[int, str]:
    """Exit status and output of the command."""
    used = token or CONTROL["authorization"].removeprefix("Bearer ")
    environment = {"AJET_URL": server.url, "AJET_TOKEN": used}
    result = await asyncio.to_thread(CliRunner().invoke, cli, ["ui", *args], env=environment)
    return result.exit_code, result.output


@pytest.mark.parametrize(("args", "scope"), [((), "view"), (("--control",), "control")])
async def test_the_page_gets_a_token_of_its_own(
    server: Running, args: tuple[str, ...], scope: str
) -> None:
    status, output = await ui(server, "--print", *args)
    assert status == 0
    address, _, token = output.strip().partition("#token=")
    assert address == f"{server.url}/ui/"
    (issued,) = [each for each in server.service.tokens.list() if each.name.startswith("page-")]
    assert (issued.scope, issued.expires_at is not None) == (scope, True)
    viewer = {"authorization": f"Bearer {unquote(token)}"}
    assert (await server.http.get("/v1/overview", headers=viewer)).status_code == 200


async def test_a_view_token_is_passed_on(server: Running) -> None:
    _, headers = await new_token(server, "viewer", scope="view")
    token = headers["authorization"].removeprefix("Bearer ")
    status, output = await ui(server, "--print", token=token)
    assert (status, unquote(output.strip().partition("#token=")[2])) == (0, token)


async def test_the_address_is_in_a_file_of_its_owner(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("webbrowser.open", lambda url: bool(opened.append(url)) or True)
    status, output = await ui(server)
    assert (status, output) == (0, f"opened {server.url}/ui/ in a browser\n")
    (url,) = opened
    file = Path(url.removeprefix("file://"))
    assert file.stat().st_mode & 0o777 == 0o600
    assert f"{server.url}/ui/#token=" in file.read_text()


async def test_without_a_browser_it_names_the_file(
    server: Running, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("webbrowser.open", lambda url: False)
    status, output = await ui(server)
    assert status == 1
    assert "no browser can be opened here" in output


def test_no_browser_for_terminals_is_opened(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It would take the terminal until it is closed."""
    for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: bool(opened.append(url)) or True)
    page = LivePage("http://127.0.0.1:1", "secret")
    assert not page.open(tmp_path / "page.html")
    assert opened == []
    assert page.address in (tmp_path / "page.html").read_text()
    assert "secret" not in repr(page)
