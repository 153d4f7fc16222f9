"""Which token opens which route. Secrets are kept as hashes and compared in constant time."""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Literal

from ajet_core.credentials import ServerTokens
from ajet_core.errors import AuthError, ConfigError, ForbiddenError
from ajet_core.protocol import TokenScope
from ajet_installation.settings import ServerSettings
from ajet_server.security.auth import EPISODE_KEY_PREFIX, bearer, hash_secret
from ajet_server.security.tokens import Token, TokenBook

Access = Literal["control", "episodes", "all episodes", "look"]
"""What a route asks for: to change the run or tokens; to have episodes of one's own; to see the episodes of
everybody; any valid token."""

_OPENED_BY: dict[Access, tuple[TokenScope, ...]] = {
    "control": ("control",),
    "episodes": ("client", "control"),
    "all episodes": ("view", "control"),
    "look": ("client", "view", "control"),
}

MIN_TOKEN_LENGTH = 16


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
    """Knows the server's own two tokens and its named ones.

    The ids of the server's own tokens are ``control`` and ``client``, also where the tokens are made anew at every
    start: what was claimed with them stays theirs.

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
        """The token in `headers`.

        :raises AuthError: there is none, or it is unknown, revoked or expired.
        :raises ForbiddenError: it is an episode's key.
        """
        secret = bearer(headers)
        if not secret:
            raise AuthError(
                "this route needs a token: send 'Authorization: Bearer TOKEN' "
                "(the client takes it from its token argument or AJET_TOKEN)"
            )
        digest = hash_secret(secret)
        # Both are compared, so that the time does not tell which came close.
        matches = [token for token in self._own if hmac.compare_digest(digest, token.hash)]
        token = matches[0] if matches else self._book.find(secret)
        if token is None:
            if secret.startswith(EPISODE_KEY_PREFIX):
                raise ForbiddenError("an episode's API key does not open this route")
            raise AuthError("unknown token")
        now = self._clock()
        if why := token.why_dead(now):
            raise AuthError(f"the token {token.name!r} is no longer valid: {why}")
        token.last_used_at = now
        return token


def check_access(token: Token, needed: Access) -> None:
    """Whether `token` opens a route.

    :raises ForbiddenError: it does not.
    """
    opened_by = _OPENED_BY[needed]
    if token.scope not in opened_by:
        raise ForbiddenError(
            f"this route needs a {' or '.join(opened_by)} token; this is a {token.scope} token"
        )
