"""Create, list and revoke the named tokens of a server.

They are kept as hashes in ``<run_dir>/tokens.json``. Only the process that has the book open writes
it: the running server, or ``ajet token`` while no server runs.
"""

from __future__ import annotations

import errno
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from pydantic import Field, TypeAdapter, ValidationError

from ajet_core.errors import NotFoundError, StateError, StoreError, StoreFullError
from ajet_core.files import write_whole
from ajet_core.protocol import TokenGrant, TokenInfo, TokenQuotas, TokenRequest, TokenScope
from ajet_server.security.api_keys import hash_secret
from ajet_server.store.file_lock import FileLock

TOKEN_PREFIX = "ajet-tk-"  # noqa: S105 - the public part
FILE_NAME = "tokens.json"
MAX_TOKENS = 10_000
_KEPT_AFTER_END = 90 * 86400.0
_NO_HASH = "0" * 64
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


@dataclass(slots=True, eq=False)
class Token:
    """A token, which identifies who makes a request.

    :param token_id: public id; the episodes of a client carry it as their owner.
    :param hash: hex SHA-256 of the secret.
    """

    token_id: str
    name: str
    scope: TokenScope
    hash: str = field(repr=False)
    quotas: TokenQuotas = field(default_factory=TokenQuotas)
    created_at: float = 0.0
    expires_at: float | None = None
    revoked_at: float | None = None
    last_used_at: float | None = None

    def why_dead(self, now: float) -> str:
        """Why the token is not valid at unix time `now`; "" if it is valid."""
        if self.revoked_at is not None:
            return "it was revoked"
        if self.expires_at is not None and now >= self.expires_at:
            when = datetime.fromtimestamp(self.expires_at, UTC)
            return f"it expired at {when:%Y-%m-%d %H:%M:%S} UTC"
        return ""

    def info(self) -> TokenInfo:
        """Return the public part of the token."""
        return TokenInfo(
            token_id=self.token_id,
            name=self.name,
            scope=self.scope,
            quotas=self.quotas,
            created_at=self.created_at,
            expires_at=self.expires_at,
            revoked_at=self.revoked_at,
            last_used_at=self.last_used_at,
        )


class _StoredToken(TokenInfo):
    hash: str = Field(pattern=r"^[0-9a-f]{64}$")


_FILE = TypeAdapter(list[_StoredToken])


class TokenBook:
    """The tokens of one run directory.

    :param clock: unix seconds.
    """

    def __init__(self, run_dir: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = run_dir / FILE_NAME
        self._clock = clock
        self._lock = FileLock(run_dir / f"{FILE_NAME}.lock", "list of tokens")
        self._tokens: dict[str, Token] = {}
        self._written = b""

    def open(self) -> None:
        """Read the file, and keep other processes from writing it until `close`.

        :raises StoreError: another process has the file open, or the file is damaged.
        """
        self._lock.acquire()
        try:
            self._tokens = self._read()
        except BaseException:
            self._lock.release()
            raise

    def close(self) -> None:
        """Write when tokens were last used, and release the file; do nothing if it is not open."""
        if not self._lock.held:
            return
        try:
            if _content(self._tokens) != self._written:
                self._write(self._tokens)
        finally:
            self._lock.release()

    def find(self, secret: str) -> Token | None:
        """Return the token with this secret, even if it is no longer valid."""
        # The public part selects one hash; comparing it takes the same time whether it matches.
        token = self._tokens.get(secret.removeprefix(TOKEN_PREFIX).partition(".")[0])
        known = token.hash if token is not None else _NO_HASH
        return token if hmac.compare_digest(hash_secret(secret), known) else None

    def get(self, token_id: str) -> Token | None:
        """Return the token with this id, even if it is no longer valid."""
        return self._tokens.get(token_id)

    def list(self) -> list[TokenInfo]:
        """Return all tokens, oldest first."""
        return [token.info() for token in self._tokens.values()]

    def issue(self, request: TokenRequest) -> TokenGrant:
        """Create a token; it is on disk when this returns. Writes a file.

        :raises StateError: a valid token has this name, or there are too many valid tokens.
        :raises StoreError: the file cannot be written.
        """
        now = self._clock()
        living = [token for token in self._tokens.values() if not token.why_dead(now)]
        if any(token.name == request.name for token in living):
            raise StateError(
                f"a token named {request.name!r} already exists: revoke it first, or choose "
                "another name",
                param="name",
            )
        if len(living) >= MAX_TOKENS:
            raise StateError(f"the limit of {MAX_TOKENS} valid tokens is reached: revoke some")
        token_id = secrets.token_hex(6)
        secret = f"{TOKEN_PREFIX}{token_id}.{secrets.token_urlsafe(32)}"
        token = Token(
            token_id=token_id,
            name=request.name,
            scope=request.scope,
            hash=hash_secret(secret),
            quotas=request.quotas,
            created_at=now,
            expires_at=None if request.expires_in is None else now + request.expires_in,
        )
        tokens = {**self._kept(now), token_id: token}
        self._write(tokens)
        self._tokens = tokens
        return TokenGrant(token=secret, info=token.info())

    def revoke(self, token_id: str) -> TokenInfo:
        """Revoke a token at once; this is on disk when it returns. Idempotent. Writes a file.

        :raises NotFoundError: no token has this id.
        :raises StoreError: the file cannot be written: the token is revoked until a restart only.
        """
        token = self._tokens.get(token_id)
        if token is None:
            raise NotFoundError(
                f"no token {token_id!r}: list all tokens with `ajet token list`", param="id"
            )
        if token.revoked_at is None:
            token.revoked_at = self._clock()
        self._write(self._tokens)
        return token.info()

    def _kept(self, now: float) -> dict[str, Token]:
        """Return all tokens except those that became invalid long ago."""
        return {
            token_id: token
            for token_id, token in self._tokens.items()
            if now < min(token.revoked_at or now, token.expires_at or now) + _KEPT_AFTER_END
        }

    def _read(self) -> dict[str, Token]:
        try:
            content = self._path.read_bytes()
            stored = _FILE.validate_json(content)
        except FileNotFoundError:
            self._written = _content({})
            return {}
        except (OSError, ValidationError) as error:
            known = isinstance(error, OSError)
            problem = str(error) if known else "it does not contain a list of tokens"
            raise StoreError(
                f"cannot read the tokens in {self._path}: {problem}. Restore the file from a "
                "backup, or remove it to revoke all tokens that were created with `ajet "
                "token create`"
            ) from None
        self._written = content
        return {token.token_id: Token(**dict(token)) for token in stored}

    def _write(self, tokens: dict[str, Token]) -> None:
        content = _content(tokens)
        try:
            write_whole(self._path, content, mode=0o600)
        except OSError as error:
            kind = StoreFullError if error.errno in _NO_SPACE else StoreError
            raise kind(
                f"cannot write {self._path}: {error}; the change was not saved, so repeat it",
                retry_after=30.0,
            ) from error
        self._written = content


def _content(tokens: dict[str, Token]) -> bytes:
    """Return the content of the file."""
    stored = [_StoredToken(**dict(token.info()), hash=token.hash) for token in tokens.values()]
    return _FILE.dump_json(stored, indent=1)
