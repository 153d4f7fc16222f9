"""How secrets are compared."""

from __future__ import annotations

import hmac
from pathlib import Path

import pytest

from ajet_core.credentials import ServerTokens
from ajet_core.errors import AuthError
from ajet_core.protocol import TokenRequest
from ajet_server.security import credentials as credentials_module
from ajet_server.security import guard as guard_module
from ajet_server.security.credentials import TokenBook
from ajet_server.security.guard import TokenGuard
from ajet_testing.servers import bearer

OWN = ServerTokens(control="control-" + "c" * 32, client="client-" + "d" * 32)


@pytest.fixture
def book(tmp_path: Path) -> TokenBook:
    book = TokenBook(tmp_path)
    book.open()
    return book


def test_a_wrong_secret_is_compared_as_often_as_any_other(
    book: TokenBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = book.issue(TokenRequest(name="alice")).token
    public = named.partition(".")[0]
    guard = TokenGuard(OWN, book)
    compared: list[tuple[int, int]] = []

    def compare(a: str, b: str) -> bool:
        compared.append((len(a), len(b)))
        return real(a, b)

    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", compare)
    assert vars(credentials_module)["hmac"] is vars(guard_module)["hmac"] is hmac
    seen = set()
    for wrong in ("x", OWN.control[:-1], named[:-1], f"{public}.", "ajet-tk-unknown.secret", "é"):
        compared.clear()
        with pytest.raises(AuthError):
            guard.identify(bearer(wrong))
        seen.add(tuple(compared))
    # Digests of one length, whatever was sent and however close it came.
    assert seen == {((64, 64),) * 3}


def test_the_own_tokens_are_known_by_their_scope(book: TokenBook) -> None:
    guard = TokenGuard(OWN, book)
    assert guard.identify(bearer(OWN.control)).scope == "control"
    assert guard.identify({"x-api-key": OWN.client}).token_id == "client"


def test_no_named_token_can_take_the_place_of_an_own_one(book: TokenBook) -> None:
    grant = book.issue(TokenRequest(name="control"))
    assert grant.info.token_id not in ("control", "client")
    assert TokenGuard(OWN, book).identify(bearer(grant.token)).scope == "client"
