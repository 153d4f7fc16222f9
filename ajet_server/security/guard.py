"""Decide which token opens which route. Secrets are kept as hashes, compared in constant time."""

from __future__ import annotations

import hmac
import json
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from ajet_core.credentials import ServerTokens, state_dir
from ajet_core.errors import AuthError, ConfigError, ForbiddenError
from ajet_core.files import write_whole
from ajet_core.protocol import TokenScope
from ajet_installation.settings import ServerSettings
from ajet_server.security.api_keys import EPISODE_KEY_PREFIX, bearer, hash_secret
from ajet_server.security.credentials import Token, TokenBook

Access = Literal["control", "episodes", "all episodes", "look"]
"""The access that a route requires.

- ``control``: change the run or tokens.
- ``episodes``: claim and end own episodes.
- ``all episodes``: see the episodes of all clients.
- ``look``: any valid token.
"""

_OPENED_BY: dict[Access, tuple[TokenScope, ...]] = {
    "control": ("control",),
    "episodes": ("client", "control"),
    "all episodes": ("view", "control"),
    "look": ("client", "view", "control"),
}

MIN_TOKEN_LENGTH = 16


def make_tokens(settings: ServerSettings) -> ServerTokens:
    """Return the tokens from the settings, with new random ones for those that are not set.

    :raises ConfigError: a token is too short to be safe, or both tokens are the same.
    """
    control, client = settings.control_token, settings.client_token
    for name, token in (("control_token", control), ("client_token", client)):
        if token is not None and len(token.get_secret_value()) < MIN_TOKEN_LENGTH:
            raise ConfigError(
                f"server.{name} is shorter than {MIN_TOKEN_LENGTH} characters: choose a long "
                "random one",
                param=f"server.{name}",
            )
    if control is not None and control == client:
        raise ConfigError(
            "server.control_token and server.client_token are the same, so every client could "
            "control the server; choose different tokens",
            param="server.client_token",
        )
    return ServerTokens(
        control=control.get_secret_value() if control else "ajet-ct-" + secrets.token_urlsafe(32),
        client=client.get_secret_value() if client else "ajet-cl-" + secrets.token_urlsafe(32),
    )


def publish_local(port: int, tokens: ServerTokens) -> Path:
    """Write the token file of the server that listens on `port` of this machine, mode 0600."""
    directory = state_dir()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    target = directory / f"{port}.json"
    content = {"control": tokens.control, "client": tokens.client}
    write_whole(target, json.dumps(content).encode(), mode=0o600)
    return target


def withdraw_local(port: int) -> None:
    """Remove the token file of `port`, if there is one."""
    (state_dir() / f"{port}.json").unlink(missing_ok=True)


class TokenGuard:
    """Identifies the server's own two tokens and its named tokens.

    The ids of the server's own tokens are always ``control`` and ``client``, even if their secrets
    are generated at each start, so that they keep the episodes claimed before.

    :param clock: unix seconds.
    """

    def __init__(
        self, tokens: ServerTokens, book: TokenBook, clock: Callable[[], float] = time.time
    ) -> None:
        self._own = [
            Token("control", "control", "control", hash_secret(tokens.control)),
            Token("client", "client", "client", hash_secret(tokens.client)),
        ]
        self._book = book
        self._clock = clock

    def identify(self, headers: Mapping[str, str]) -> Token:
        """Return the token in `headers`.

        :raises AuthError: there is no token, or it is unknown, revoked or expired.
        :raises ForbiddenError: the secret is an episode's key.
        """
        secret = bearer(headers)
        if not secret:
            raise AuthError(
                "this route requires a token: send 'Authorization: Bearer TOKEN' (the "
                "client takes it from its token argument or AJET_TOKEN)"
            )
        digest = hash_secret(secret)
        # Compare both, so that the time does not reveal which one was close.
        matches = [token for token in self._own if hmac.compare_digest(digest, token.hash)]
        token = matches[0] if matches else self._book.find(secret)
        if token is None:
            if secret.startswith(EPISODE_KEY_PREFIX):
                raise ForbiddenError("this route does not accept the API key of an episode")
            raise AuthError(
                "this server has no such token: check AJET_TOKEN and the server's URL, or create a "
                "token with `ajet token create`"
            )
        now = self._clock()
        if why := token.why_dead(now):
            raise AuthError(f"the token {token.name!r} is no longer valid: {why}")
        token.last_used_at = now
        return token


def check_access(token: Token, needed: Access) -> None:
    """Check that `token` opens a route.

    :raises ForbiddenError: the token's scope does not give this access.
    """
    opened_by = _OPENED_BY[needed]
    if token.scope not in opened_by:
        raise ForbiddenError(
            f"this route requires a {' or '.join(opened_by)} token; this is a {token.scope} token"
        )
