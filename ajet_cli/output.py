"""Where the subcommands print their tables."""

from __future__ import annotations

from rich.console import Console

_WIDE = 200


def table_console() -> Console:
    """A console as wide as the terminal; wide enough not to break words where there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDE)
