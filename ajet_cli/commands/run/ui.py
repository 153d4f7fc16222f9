"""``ajet ui``."""

from __future__ import annotations

import json
import secrets
import webbrowser
from contextlib import closing
from urllib.parse import quote, urlsplit

import click

from agentjet.client import TokenClient
from ajet_cli.state import CliState, config_option, pass_state, set_flags
from ajet_core.credentials import state_dir
from ajet_core.errors import ForbiddenError
from ajet_core.files import write_whole
from ajet_core.protocol import TokenRequest

_RETRIES = 1
_SECONDS = 12 * 3600.0
# A browser's command line can be read by other users, so the address is in a file.
_PAGE = """<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<title>agentjet</title>
<script>location.replace(ADDRESS)</script>
"""


@click.command()
@click.option("--url", help="URL of the server.  [default: AJET_URL, or http://127.0.0.1:8642]")
@click.option("--control", is_flag=True, help="Also allow to pause, resume and stop the run.")
@click.option("--print", "show", is_flag=True, help="Print the address instead of opening it.")
@config_option
@pass_state
def ui(state: CliState, url: str | None, *, control: bool, show: bool) -> None:
    """Open the live page of a server in a browser.

    The page gets a token of its own, which expires after 12 hours. If you have set a token that may
    not create others, the page uses that one.
    """
    settings = state.settings(set_flags("client", url=url)).client
    given = settings.token.get_secret_value() if settings.token else None
    with closing(TokenClient(settings.url, given, retries=_RETRIES)) as tokens:
        request = TokenRequest(
            name=f"page-{secrets.token_hex(4)}",
            scope="control" if control else "view",
            expires_in=_SECONDS,
        )
        try:
            token = tokens.issue(request).token
        except ForbiddenError:
            if given is None:
                raise
            token = given
        server = tokens.url
    address = f"{server}/ui/#token={quote(token, safe='')}"
    if show:
        click.echo(address)
        return
    parts = urlsplit(server)
    file = state_dir() / f"page-{parts.hostname}-{parts.port or parts.scheme}.html"
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    text = json.dumps(address).replace("<", "\\u003c")
    write_whole(file, _PAGE.replace("ADDRESS", text).encode(), mode=0o600)
    if not webbrowser.open(file.as_uri()):
        raise click.ClickException(
            f"no browser can be opened here: open {file} in one, or print the address with "
            "`ajet ui --print`"
        )
    click.echo(f"opened {server}/ui/ in a browser")
