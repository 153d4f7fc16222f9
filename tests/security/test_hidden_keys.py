"""Each key that a server makes is hidden wherever text leaves it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ajet_cli.mcp.answers import without_tokens
from ajet_core.protocol import TokenRequest
from ajet_installation.settings import Settings
from ajet_server.alerts.redacting import Redactor
from ajet_server.security.api_keys import new_episode_key
from ajet_server.security.credentials import TokenBook
from ajet_server.security.guard import make_tokens
from ajet_server.telemetry.log_handler import without_keys


@pytest.fixture
def keys(tmp_path: Path) -> list[str]:
    book = TokenBook(tmp_path)
    book.open()
    named = book.issue(TokenRequest(name="me", scope="client")).token
    book.close()
    tokens = make_tokens(Settings().server)
    return [new_episode_key("0123abcd", None), named, tokens.control, tokens.client]


@pytest.mark.parametrize(
    "hide",
    [without_keys, Redactor(Settings(), {}), lambda text: without_tokens(text, ())],
    ids=["telemetry", "alerts", "mcp"],
)
@pytest.mark.parametrize("around", ["{}", "at http://h/{}", "x{}, y", "'{}'"])
def test_every_kind_of_key_is_hidden(
    keys: list[str], hide: Callable[[str], str], around: str
) -> None:
    for key in keys:
        hidden = hide(around.format(key))
        assert key[10:] not in hidden
        start, end = around.split("{}")
        assert hidden.startswith(start)
        assert hidden.endswith(end)
