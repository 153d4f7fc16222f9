"""Where URL and token come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet_core.client._wire import DEFAULT_URL, resolve_endpoint
from ajet_core.credentials import ServerTokens, publish_local


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


def test_the_token_is_not_shown() -> None:
    assert "mine" not in repr(resolve_endpoint(None, "mine"))
