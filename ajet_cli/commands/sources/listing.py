"""``ajet sources``."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version

import click
from rich.table import Table
from rich.text import Text

from ajet_cli.output import table_console
from ajet_cli.state import CliState, config_option, pass_state
from ajet_core.alike import did_you_mean
from ajet_sources.catalogue import CatalogueEntry, catalogue

_COLUMNS = ("source", "tasks from", "licence", "size", "offline", "reward", "train")


@click.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
@config_option
@pass_state
def sources(state: CliState, name: str | None, as_json: bool) -> None:
    """List the installed task sources: licence, size, reward, and how to train each.

    NAME is a source; without it, all are listed. docs/catalogue.md has those of all plugins of
    agentjet.
    """
    known = state.plugins.names("source")
    if name is not None and name not in known:
        raise click.BadParameter(
            f"no source {name!r} is installed{did_you_mean(name, sorted(known))}", param_hint="NAME"
        )
    listed = catalogue(state.plugins, None if name is None else [name])
    if as_json:
        rows = [
            {
                "source": source_name,
                "summary": summary,
                "installed": _installed(entry),
                **({} if entry is None else entry.model_dump()),
                "problem": problem,
            }
            for source_name, (summary, entry, problem) in listed.items()
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for column in _COLUMNS:
        table.add_column(column, overflow="fold")
    for source_name, (summary, entry, _) in listed.items():
        if entry is None:
            table.add_row(source_name, Text(summary))
            continue
        cells = (
            f"{entry.title} {_installed(entry)}".strip(),
            entry.licence,
            entry.size,
            "yes" if entry.offline else "no",
            entry.reward,
            f"ajet train '{entry.train}'",
        )
        table.add_row(source_name, *map(Text, cells))
    console = table_console()
    console.print(table)
    for source_name, (_, _, problem) in listed.items():
        if problem:
            console.print()
            console.print(Text(f"{source_name}: {problem}", style="red"))


def _installed(entry: CatalogueEntry | None) -> str:
    """Return the version of the package with the tasks, "" if there is none."""
    if entry is None or not entry.package:
        return ""
    try:
        return version(entry.package)
    except PackageNotFoundError:
        return "(not installed)"
