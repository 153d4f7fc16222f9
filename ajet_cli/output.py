"""What subcommands write: tables, and texts of others as text.

Names, reasons and errors come from agents, models and other servers. A terminal obeys escape
sequences in them, and Rich reads square brackets as markup.
"""

from __future__ import annotations

import click
from rich.console import Console
from rich.text import Text

from ajet_server.page.visible_text import visible

_WIDE = 200


def table_console() -> Console:
    """Return a console with the terminal's width, or a wide one if there is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDE)


def plain(text: str, style: str = "") -> Text:
    """Return a text of others for a table or a console. Its lines stay lines."""
    return Text(visible(text, keep="\n"), style=style)


def echo_plain(text: str, *, err: bool = False) -> None:
    """Write a text of others and a newline. Its lines and tabs stay what they are.

    :param err: to standard error.
    """
    click.echo(visible(text, keep="\n\t"), err=err)
