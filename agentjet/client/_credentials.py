"""Management of a server's tokens, for holders of a control token."""

from __future__ import annotations

import json
import os
import secrets
import sys
import webbrowser
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from agentjet.client._connection_sync import Connection
from agentjet.client._wire import ApiRequest
from ajet_core.files import write_whole
from ajet_core.protocol import TokenGrant, TokenInfo, TokenList, TokenRequest

_PAGE_SECONDS = 12 * 3600.0
# A browser's command line can be read by other users, so the address is in a file.
_PAGE = """<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<title>agentjet</title>
<script>location.replace(ADDRESS)</script>
"""


@dataclass(frozen=True, slots=True)
class LivePage:
    """The live page of a server, with the token that it logs in with.

    :param url: the server's URL.
    :param token: a token of the scope ``view`` or ``control``.
    """

    url: str
    token: str = field(repr=False)

    @property
    def address(self) -> str:
        """The address to open, with the token."""
        return f"{self.url}/ui/#token={quote(self.token, safe='')}"

    def open(self, file: Path) -> bool:
        """Open it in a browser; return False if there is none.

        :param file: written with the address, for its owner alone; what the browser opens.
        """
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        text = json.dumps(self.address).replace("<", "\\u003c")
        write_whole(file, _PAGE.replace("ADDRESS", text).encode(), mode=0o600)
        # Without a display, `webbrowser` would run a browser for terminals, if there is one, and
        # wait for its end.
        displays = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
        if sys.platform == "linux" and not any(map(os.environ.get, displays)):
            return False
        return webbrowser.open(file.as_uri())


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

    def issue_page(self, *, control: bool = False) -> LivePage:
        """Create a token for the live page, which expires after 12 hours.

        :param control: also allow to pause, resume and stop the run.
        """
        request = TokenRequest(
            name=f"page-{secrets.token_hex(4)}",
            scope="control" if control else "view",
            expires_in=_PAGE_SECONDS,
        )
        return LivePage(self.url, self.issue(request).token)

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
