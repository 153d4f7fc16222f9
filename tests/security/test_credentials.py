"""The file of tokens: hashes alone, one writer, nothing lost."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ajet_core.errors import NotFoundError, StateError, StoreError, StoreFullError
from ajet_core.protocol import TokenRequest
from ajet_server.security import credentials as credentials_module
from ajet_server.security.credentials import TOKEN_PREFIX, TokenBook


class Clock:
    now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def opened(run_dir: Path, clock: Clock | None = None) -> TokenBook:
    book = TokenBook(run_dir, clock or Clock())
    book.open()
    return book


def request(name: str = "alice", expires_in: float | None = None) -> TokenRequest:
    return TokenRequest(name=name, expires_in=expires_in)


def test_a_token_is_found_by_its_secret_also_by_the_next_process(tmp_path: Path) -> None:
    book = opened(tmp_path)
    grant = book.issue(request())
    book.close()
    found = opened(tmp_path).find(grant.token)
    assert found is not None
    assert found.info() == grant.info


@pytest.mark.parametrize("change", ["", "x", "é", "\x00"])
def test_what_is_not_the_whole_secret_finds_nothing(tmp_path: Path, change: str) -> None:
    book = opened(tmp_path)
    secret = book.issue(request()).token
    for wrong in (secret[:-1] + change, secret + "x", secret.partition(".")[0], change):
        assert book.find(wrong) is None


def test_the_file_holds_no_secret_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    grant = opened(tmp_path).issue(request())
    path = tmp_path / "tokens.json"
    secret = grant.token.removeprefix(TOKEN_PREFIX).partition(".")[2]
    assert secret not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_repr_shows_neither_secret_nor_hash(tmp_path: Path) -> None:
    book = opened(tmp_path)
    grant = book.issue(request())
    token = book.find(grant.token)
    assert token is not None
    assert grant.token.partition(".")[2] not in repr(grant)
    assert token.hash not in repr(token)


def test_a_token_expires(tmp_path: Path) -> None:
    clock = Clock()
    book = opened(tmp_path, clock)
    token = book.find(book.issue(request(expires_in=60.0)).token)
    assert token is not None
    assert token.why_dead(clock.now + 59.9) == ""
    assert token.why_dead(clock.now + 60.0) == "it expired at 2023-11-14 22:14:20 UTC"


def test_two_valid_tokens_do_not_have_one_name(tmp_path: Path) -> None:
    book = opened(tmp_path)
    first = book.issue(request())
    with pytest.raises(StateError, match="'alice'"):
        book.issue(request())
    book.revoke(first.info.token_id)
    assert book.issue(request()).info.token_id != first.info.token_id


def test_an_unknown_token_cannot_be_revoked(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="'nope'"):
        opened(tmp_path).revoke("nope")


def test_two_processes_do_not_write_at_once(tmp_path: Path) -> None:
    book = opened(tmp_path)
    with pytest.raises(StoreError, match=f"process {os.getpid()}"):
        opened(tmp_path)
    book.close()
    opened(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "{}", '[{"token_id": "x"}]', "[" * 5000])
def test_a_damaged_file_lets_nobody_in_and_is_left_as_it_is(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(content)
    with pytest.raises(StoreError, match=r"tokens\.json"):
        opened(tmp_path)
    assert path.read_text() == content
    path.unlink()
    opened(tmp_path)


def test_on_a_full_disk_no_token_is_made_and_a_revoked_one_is_dead_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = opened(tmp_path)
    grant = book.issue(request())

    def no_space(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(credentials_module, "write_whole", no_space)
    with pytest.raises(StoreFullError, match="repeat"):
        book.issue(request("bob"))
    assert [info.name for info in book.list()] == ["alice"]
    with pytest.raises(StoreFullError, match="repeat"):
        book.revoke(grant.info.token_id)
    token = book.find(grant.token)
    assert token is not None
    assert token.why_dead(Clock.now) == "it was revoked"


def test_tokens_that_are_long_dead_are_forgotten(tmp_path: Path) -> None:
    clock = Clock()
    book = opened(tmp_path, clock)
    for name in ("expired", "revoked", "valid"):
        grant = book.issue(request(name, 60.0 if name == "expired" else None))
        if name == "revoked":
            book.revoke(grant.info.token_id)
    clock.now += 89 * 86400
    book.issue(request("first"))
    assert len(book.list()) == 4
    clock.now += 2 * 86400
    book.issue(request("second"))
    assert [info.name for info in book.list()] == ["valid", "first", "second"]
    assert len(json.loads((tmp_path / "tokens.json").read_text())) == 3


def test_who_only_looks_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = opened(tmp_path)
    grant = book.issue(request())
    book.close()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was written")

    with monkeypatch.context() as patched:
        patched.setattr(credentials_module, "write_whole", refuse)
        book = opened(tmp_path)
        assert len(book.list()) == 1
        book.close()
    book = opened(tmp_path)
    token = book.find(grant.token)
    assert token is not None
    token.last_used_at = Clock.now
    book.close()
    assert opened(tmp_path).list()[0].last_used_at == Clock.now
