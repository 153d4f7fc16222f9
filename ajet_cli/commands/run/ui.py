"""``ajet ui``."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import click

from agentjet.client import LivePage, TokenClient
from ajet_cli.servers import find_server, server_options
from ajet_cli.state import CliState, config_option, pass_state
from ajet_core.credentials import state_dir
from ajet_core.errors import ForbiddenError

_RETRIES = 1


@click.command()
@server_options
@click.option("--control", is_flag=True, help="Also allow to pause, resume and stop the run.")
@click.option("--print", "show", is_flag=True, help="Print the address instead of opening it.")
@config_option
@pass_state
def ui(
    state: CliState, run_dir: Path | None, url: str | None, *, control: bool, show: bool
) -> None:
    """Open the live page of a server in a browser.

    The page gets a token of its own, which expires after 12 hours. If you have set a token that may
    not create others, the page uses that one.
    """
    server = find_server(state, url, run_dir)
    given = server.token
    with closing(TokenClient(server.url, given, retries=_RETRIES)) as tokens:
        try:
            page = tokens.issue_page(control=control)
        except ForbiddenError:
            if given is None:
                raise
            page = LivePage(tokens.url, given)
    if show:
        click.echo(page.address)
        return
    parts = urlsplit(page.url)
    file = state_dir() / f"page-{parts.hostname}-{parts.port or parts.scheme}.html"
    if not page.open(file):
        raise click.ClickException(
            f"no browser can be opened here: open {file} in one, or print the address with "
            "`ajet ui --print`"
        )
    click.echo(f"opened {page.url}/ui/ in a browser")
