"""The tokens of a server, for whoever has control of it."""

from __future__ import annotations

import time
from typing import TypeVar
from urllib.parse import quote

from pydantic import BaseModel

from agentjet.client._flows import Flows
from agentjet.client._transport import SyncDriver
from agentjet.client._wire import Call
from ajet_core.protocol import TokenGrant, TokenInfo, TokenList, TokenRequest

A = TypeVar("A", bound=BaseModel)


class TokenClient:
    """Makes, lists and revokes tokens of a running server.

    :param url: as of `SwarmClient`, and so is `token`, which must be a control token.
    """

    def __init__(self, url: str | None, token: str | None, *, retries: int) -> None:
        self._flows = Flows(url, token, retries=retries)
        self._driver = SyncDriver(self._flows, None, time.sleep)

    def issue(self, request: TokenRequest) -> TokenGrant:
        """Make a token."""
        # Not repeated by itself: nobody would know the secret of the first one.
        return self._run(Call("POST", "/v1/tokens", TokenGrant, request, repeatable=False))

    def list(self) -> list[TokenInfo]:
        """All tokens, the oldest first."""
        return self._run(Call("GET", "/v1/tokens", TokenList)).tokens

    def revoke(self, token_id: str) -> TokenInfo:
        """Revoke a token."""
        return self._run(Call("DELETE", f"/v1/tokens/{quote(token_id, safe='')}", TokenInfo))

    def close(self) -> None:
        """Close all connections."""
        self._driver.close()

    def _run(self, call: Call[A]) -> A:
        return self._driver.run(self._flows.perform(call))
