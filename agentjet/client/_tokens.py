"""The tokens of a server, for whoever has control of it."""

from __future__ import annotations

from urllib.parse import quote

from agentjet.client._connection_sync import Connection
from agentjet.client._wire import Call
from ajet_core.protocol import TokenGrant, TokenInfo, TokenList, TokenRequest


class TokenClient:
    """Makes, lists and revokes tokens of a running server.

    :param url: as of `SwarmClient`, and so is `token`, which must be a control token.
    """

    def __init__(self, url: str | None, token: str | None, *, retries: int) -> None:
        self._connection = Connection(url, token, retries=retries)

    def issue(self, request: TokenRequest) -> TokenGrant:
        """Make a token."""
        # Not repeated by itself: nobody would know the secret of the first one.
        call = Call("POST", "/v1/tokens", TokenGrant, request, repeatable=False)
        return self._connection.perform(call)

    def list(self) -> list[TokenInfo]:
        """All tokens, the oldest first."""
        return self._connection.perform(Call("GET", "/v1/tokens", TokenList)).tokens

    def revoke(self, token_id: str) -> TokenInfo:
        """Revoke a token."""
        call = Call("DELETE", f"/v1/tokens/{quote(token_id, safe='')}", TokenInfo)
        return self._connection.perform(call)

    def close(self) -> None:
        """Close all connections."""
        self._connection.close()
