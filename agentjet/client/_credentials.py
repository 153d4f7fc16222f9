"""Management of a server's tokens, for holders of a control token."""

from __future__ import annotations

from urllib.parse import quote

from agentjet.client._connection_sync import Connection
from agentjet.client._wire import ApiRequest
from ajet_core.protocol import TokenGrant, TokenInfo, TokenList, TokenRequest


class TokenClient:
    """A client that creates, lists and revokes tokens of a running server.

    :param url: as for `SwarmClient`, as is `token`, which must be a control token.
    """

    def __init__(self, url: str | None, token: str | None, *, retries: int) -> None:
        self._connection = Connection(url, token, retries=retries)

    @property
    def url(self) -> str:
        """The server's URL."""
        return self._connection.endpoint.url

    def issue(self, request: TokenRequest) -> TokenGrant:
        """Create a token."""
        # Not repeatable: if the response were lost, the secret of the first token would be unknown.
        return self._connection.perform(
            ApiRequest("POST", "/v1/tokens", TokenGrant, request, repeatable=False)
        )

    def list(self) -> list[TokenInfo]:
        """Return all tokens, oldest first."""
        return self._connection.perform(ApiRequest("GET", "/v1/tokens", TokenList)).tokens

    def revoke(self, token_id: str) -> TokenInfo:
        """Revoke a token."""
        request = ApiRequest("DELETE", f"/v1/tokens/{quote(token_id, safe='')}", TokenInfo)
        return self._connection.perform(request)

    def close(self) -> None:
        """Close all connections."""
        self._connection.close()
