"""``ajet plugins``."""

from __future__ import annotations

import dataclasses
import json

import click
from rich.table import Table
from rich.text import Text

from ajet_cli.output import table_console
from ajet_cli.state import CliState, config_option, pass_state
from ajet_core.plugin import PluginInfo


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
@config_option
@pass_state
def plugins(state: CliState, as_json: bool) -> None:
    """List installed plugins, what they register, and their problems.

    Plugins that are blocked, or made for another hook API, are shown from their metadata alone.
    """
    infos = state.plugins.plugins(load=True)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(info) for info in infos], indent=2))
        return
    console = table_console()
    console.print(_table(infos))
    for info in infos:
        if info.problem:
            console.print()
            console.print(
                Text(f"{info.name}: {info.problem}", style="dim" if info.blocked else "red")
            )


def _table(infos: list[PluginInfo]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("plugin", "distribution", "version", "hook API", "hooks", "components", "problem"):
        table.add_column(name, overflow="fold")
    for info in infos:
        api = "none" if info.hook_api is None else f"{info.hook_api[0]}.{info.hook_api[1]}"
        problem = "blocked" if info.blocked else ("see below" if info.problem else "")
        cells = (
            info.name,
            info.distribution,
            info.version,
            api,
            "\n".join(hook.removeprefix("ajet_").removeprefix("register_") for hook in info.hooks),
            "\n".join(info.components),
            problem,
        )
        table.add_row(*(Text(cell) for cell in cells))
    return table
