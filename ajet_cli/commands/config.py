"""``ajet config``."""

from __future__ import annotations

import dataclasses
import json

import click
from rich.table import Table
from rich.text import Text

from ajet_cli.output import table_console
from ajet_cli.state import CliState, config_option, pass_state


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
@config_option
@pass_state
def config(state: CliState, as_json: bool) -> None:
    """Show every effective setting and where it came from. Secrets are masked."""
    origins = state.settings().explain()
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(origin) for origin in origins], indent=2))
        return
    table = Table("setting", "value", "from", box=None, pad_edge=False)
    for origin in origins:
        value = "" if origin.value is None else json.dumps(origin.value)
        # Dim defaults, which are the least interesting.
        table.add_row(
            *(Text(text) for text in (origin.key, value, origin.source)),
            style="dim" if origin.source == "default" else None,
        )
    table_console().print(table)
