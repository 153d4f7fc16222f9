"""Tokens and keys: made from 256 random bits, kept as hashes, compared in constant time."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Literal

from ajet_core.credentials import ServerTokens
from ajet_core.errors import AuthError, ConfigError, ForbiddenError
from ajet_core.settings import ServerSettings

Scope = Literal["control", "client"]

EPISODE_KEY_PREFIX = "ajet-ep-"
MIN_TOKEN_LENGTH = 16


def hash_secret(secret: str) -> str:
    """Hex SHA-256. A fast hash suffices for long random secrets, which these are."""
    return hashlib.sha256(secret.encode()).hexdigest()


def new_episode_key(episode_id: str, claim_id: str | None) -> str:
    """A new API key for one episode; it names the episode, so that a dead key can be explained.

    :param claim_id: a secret of the client's, of which the same key can be made again; None takes a random one.
    """
    secret = claim_id or secrets.token_urlsafe(32)
    digest = hmac.digest(secret.encode(), f"episode key {episode_id}".encode(), "sha256")
    return (
        f"{EPISODE_KEY_PREFIX}{episode_id}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"
    )


def bearer(headers: Mapping[str, str]) -> str:
    """The secret of the ``Authorization`` (or ``x-api-key``) header, "" if there is none."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value:
        return value.strip()
    return headers.get("x-api-key", "").strip()


def make_tokens(settings: ServerSettings) -> ServerTokens:
    """The tokens from the settings; new random ones where none are set.

    :raises ConfigError: a token is too short to be safe, or both are the same.
    """
    control, client = settings.control_token, settings.client_token
    for name, token in (("control_token", control), ("client_token", client)):
        if token is not None and len(token.get_secret_value()) < MIN_TOKEN_LENGTH:
            raise ConfigError(
                f"server.{name} is shorter than {MIN_TOKEN_LENGTH} characters: choose a long random one",
                param=f"server.{name}",
            )
    if control is not None and control == client:
        raise ConfigError(
            "server.control_token and server.client_token are the same: every client would have control",
            param="server.client_token",
        )
    return ServerTokens(
        control=control.get_secret_value() if control else "ajet-ct-" + secrets.token_urlsafe(32),
        client=client.get_secret_value() if client else "ajet-cl-" + secrets.token_urlsafe(32),
    )


class TokenGuard:
    """Knows the hashes of the server's tokens."""

    def __init__(self, tokens: ServerTokens) -> None:
        self._hashes: dict[Scope, str] = {
            "control": hash_secret(tokens.control),
            "client": hash_secret(tokens.client),
        }

    def check(self, headers: Mapping[str, str], needed: Scope) -> Scope:
        """The scope of the token in `headers`.

        :raises AuthError: there is none, or it is unknown.
        :raises ForbiddenError: it is valid, but `needed` asks for more.
        """
        secret = bearer(headers)
        if not secret:
            raise AuthError(
                "this route needs a token: send 'Authorization: Bearer TOKEN' "
                "(the client takes it from its token argument or AJET_TOKEN)"
            )
        digest = hash_secret(secret)
        # All hashes are compared, so that the time does not tell which scope came close.
        matches = [s for s, known in self._hashes.items() if hmac.compare_digest(digest, known)]
        if not matches:
            if secret.startswith(EPISODE_KEY_PREFIX):
                raise ForbiddenError("an episode's API key does not open this route")
            raise AuthError("unknown or revoked token")
        if needed == "control" and "control" not in matches:
            raise ForbiddenError("this route needs the control token; this is the client token")
        return matches[0]
