"""Where URL and token come from."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from agentjet.client._wire import DEFAULT_URL, resolve_endpoint
from ajet_core.credentials import ServerTokens
from ajet_core.errors import AuthError
from ajet_server.security.guard import publish_local
from tests.support.clients import MakeFace, Script, error, server_status

from .test_events import event, stream


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AJET_URL", raising=False)
    monkeypatch.delenv("AJET_TOKEN", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def test_the_default_is_this_machine_without_a_token() -> None:
    endpoint = resolve_endpoint(None, None)
    assert (endpoint.url, endpoint.token) == (DEFAULT_URL, None)


def test_the_environment_comes_before_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AJET_URL", "https://gpu.example")
    monkeypatch.setenv("AJET_TOKEN", "from-environment")
    endpoint = resolve_endpoint(None, None)
    assert (endpoint.url, endpoint.token) == ("https://gpu.example", "from-environment")


def test_arguments_come_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AJET_URL", "https://gpu.example")
    monkeypatch.setenv("AJET_TOKEN", "from-environment")
    endpoint = resolve_endpoint("http://other.example", "mine")
    assert (endpoint.url, endpoint.token) == ("http://other.example", "mine")


def test_a_server_of_this_user_left_its_control_token() -> None:
    publish_local(8642, ServerTokens(control="ctl", client="cli"))
    assert resolve_endpoint(None, None).token == "ctl"
    assert resolve_endpoint("http://127.0.0.1:9999", None).token is None
    assert resolve_endpoint("http://gpu.example:8642", None).token is None


def test_a_server_that_was_started_again_has_left_another_token() -> None:
    publish_local(8642, ServerTokens(control="ctl", client="cli"))
    endpoint = resolve_endpoint(None, None)
    assert endpoint.found_anew() is None
    publish_local(8642, ServerTokens(control="new", client="cli"))
    found = endpoint.found_anew()
    assert found is not None
    assert found.token == "new"
    assert found.found_anew() is None
    # Nobody's own token is replaced.
    assert resolve_endpoint(None, "mine").found_anew() is None


def test_the_token_is_not_shown() -> None:
    assert "mine" not in repr(resolve_endpoint(None, "mine"))


def restarted(request: httpx2.Request) -> bool:
    """The server is started again just before it gets the first request, with a new token."""
    publish_local(8642, ServerTokens(control="new", client="cli"))
    return request.headers["authorization"] != "Bearer new"


REFUSED = (401, error("invalid_api_key", "unknown token"))


async def test_a_client_goes_on_with_the_token_of_a_server_that_was_started_again(
    make: MakeFace,
) -> None:
    publish_local(8642, ServerTokens(control="old", client="cli"))
    script = Script()
    script.on(
        "GET /v1/status",
        lambda request: REFUSED if restarted(request) else (200, server_status()),
    )
    script.on(
        "GET /v1/events",
        lambda request: (
            httpx2.Response(401, json=REFUSED[1]) if restarted(request) else stream(event(1))
        ),
    )
    face = make(script, url=DEFAULT_URL, token=None)
    assert (await face.call("status")).step == 3
    used = [request.headers["authorization"] for request in script.requests]
    assert used == ["Bearer old", "Bearer new"]
    publish_local(8642, ServerTokens(control="old", client="cli"))
    assert len(await make(script, url=DEFAULT_URL, token=None).events(1)) == 1


async def test_a_token_that_was_given_is_refused_once(make: MakeFace) -> None:
    publish_local(8642, ServerTokens(control="other", client="cli"))
    script = Script().on("GET /v1/status", REFUSED)
    with pytest.raises(AuthError, match="unknown token"):
        await make(script, url=DEFAULT_URL).call("status")
    with pytest.raises(AuthError, match="unknown token"):
        await make(script, url=DEFAULT_URL, token=None).call("status")
    assert len(script.requests) == 2
