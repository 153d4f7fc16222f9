"""``ajet monitor``."""

from __future__ import annotations

import codecs
import locale
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TextIO
from urllib.parse import parse_qs

import click

from agentjet.client import AsyncViewClient
from ajet_cli.monitor.layout import ASCII, UNICODE, Glyphs
from ajet_cli.servers import find_server
from ajet_cli.state import CliState, config_option, pass_state
from ajet_core.errors import ConfigError, UnreadableFileError

if TYPE_CHECKING:
    from ajet_cli.monitor.app import MonitorApp

_CANNOT_MOVE = ("dumb", "unknown")
_INSTEAD = "`ajet status` prints the same state once, and `ajet status --watch` again and again"


@click.command()
@click.argument("urls", metavar="[URL|RUN_DIR]...", nargs=-1)
@click.option(
    "--servers",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File with more servers, one a line: a URL, or what `ajet ui --print` prints.",
)
@click.option("--ascii", "ascii_only", is_flag=True, help="Draw with ASCII characters only.")
@config_option
@pass_state
def monitor(
    state: CliState, urls: tuple[str, ...], servers: Path | None, *, ascii_only: bool
) -> None:
    """Show runs in a terminal: state, findings, curves, episodes and their tokens.

    Without an argument it shows the server of AJET_URL, or of this machine. With several, each has
    a row.
    The token is looked up as by the other commands; the scope view is enough.
    """
    check_terminal((sys.stdin, sys.stdout, sys.stderr), os.environ)
    application = load_application()
    chosen: list[str | None] = list(urls)
    chosen += read_servers(servers) if servers else []
    clients = []
    for address in chosen or [None]:
        if address is not None and Path(address).is_dir():
            server, token = find_server(state, None, Path(address)), None
        else:
            url, token = split_token(address)
            server = find_server(state, url)
        clients.append(AsyncViewClient(server.url, token or server.token))
    app = application(clients, ASCII if ascii_only else glyphs_of_terminal())
    app.run()
    if app.return_code:
        raise click.exceptions.Exit(app.return_code)


def check_terminal(streams: Iterable[TextIO], environment: Mapping[str, str]) -> None:
    """Check that the monitor can be shown.

    :raises click.ClickException: it cannot; the message names what to use instead.
    """
    if not all(stream.isatty() for stream in streams):
        raise click.ClickException(f"the monitor needs a terminal: {_INSTEAD}")
    if (terminal := environment.get("TERM")) in _CANNOT_MOVE:
        raise click.ClickException(
            f"the monitor needs a terminal that can move its cursor, and TERM is {terminal}: "
            f"{_INSTEAD}"
        )


def load_application() -> type[MonitorApp]:
    """Import the application.

    :raises ConfigError: textual is not installed.
    """
    try:
        from ajet_cli.monitor.app import MonitorApp
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        raise ConfigError(
            "`ajet monitor` requires textual: pip install 'agentjet[monitor]>=0.1'"
        ) from error
    return MonitorApp


def read_servers(file: Path) -> list[str]:
    """Return the addresses in a file, one a line; empty lines and those that begin with # are none.

    :raises UnreadableFileError: the file cannot be read.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableFileError(f"cannot read {file}: {error}") from error
    stripped = [each.strip() for each in lines]
    addresses = [each for each in stripped if each and not each.startswith("#")]
    if not addresses:
        raise UnreadableFileError(f"{file} has no address of a server: one a line is expected")
    return addresses


def split_token(address: str | None) -> tuple[str | None, str | None]:
    """Return the URL of a server and the token, if the address is that of its page."""
    if address is None:
        return None, None
    url, _, fragment = address.partition("#")
    tokens = parse_qs(fragment).get("token")
    if tokens is None:
        return address, None
    return url.rstrip("/").removesuffix("/ui"), tokens[0]


def glyphs_of_terminal() -> Glyphs:
    """Return what the terminal can show, which is what the locale says but on Windows."""
    if os.name == "nt":
        return UNICODE
    try:
        encoding = codecs.lookup(locale.getencoding()).name
    except LookupError:
        return ASCII
    linux_console = os.environ.get("TERM") == "linux"
    return UNICODE if encoding == "utf-8" and not linux_console else ASCII
