"""The console for tables of subcommands."""

from __future__ import annotations

from rich.console import Console

_WIDE = 200


def table_console() -> Console:
    """Return a console with the terminal's width, or a wide one if there is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDE)
