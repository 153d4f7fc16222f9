"""``ajet plugins``."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from ajet_cli.output import table_console
from ajet_cli.state import CliState, config_option, pass_state
from ajet_core.alike import did_you_mean
from ajet_core.errors import PluginError, UnknownComponentError
from ajet_core.plugin import PluginInfo, PluginManager
from ajet_core.plugin.loading import OBSERVERS
from ajet_core.plugin.targets import CORE_DISTRIBUTION
from ajet_installation.check_plugin import ComponentCheck, check_plugin

_STYLES = {"created": "green", "imported": "green", "wrong": "red"}
_ABOUT = ("plugin", "distribution", "version", "hook API")


@click.command()
@click.argument("name", required=False)
@click.option(
    "--check", is_flag=True, help="Import components and settings, and create what needs nothing."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
@config_option
@pass_state
@click.pass_context
def plugins(
    ctx: click.Context, state: CliState, name: str | None, check: bool, as_json: bool
) -> None:
    """List installed plugins, what they register, and their problems; the embedded ones last.

    NAME is a plugin or distribution; without it, all are listed. Plugins that are blocked, or made
    for another hook API, are shown from their metadata alone.

    With --check, the exit status is 1 if a plugin or component cannot be used.
    """
    infos = _chosen(state.plugins.plugins(load=True), name)
    infos.sort(key=lambda info: info.distribution == CORE_DISTRIBUTION)
    summaries = {info: _summaries(state.plugins, info) for info in infos}
    settings = state.settings()
    checks = {
        info: check_plugin(state.plugins, info, settings) if check and not info.problem else []
        for info in infos
    }
    if as_json:
        rows = [_row(info, summaries[info]) for info in infos]
        if check:
            for row, info in zip(rows, infos, strict=True):
                row["checks"] = [dataclasses.asdict(one) for one in checks[info]]
        click.echo(json.dumps(rows, indent=2))
    else:
        _show(infos, summaries, checks if check else None)
    wrong = [one for results in checks.values() for one in results if one.state == "wrong"]
    if check and (wrong or any(info.problem and not info.blocked for info in infos)):
        ctx.exit(1)


def _chosen(infos: list[PluginInfo], name: str | None) -> list[PluginInfo]:
    if name is None:
        return infos
    chosen = [info for info in infos if name in (info.name, info.distribution)]
    if not chosen:
        known = sorted({info.name for info in infos})
        raise UnknownComponentError(
            f"no plugin {name!r} is installed{did_you_mean(name, known)}; installed: "
            f"{', '.join(known)}"
        )
    return chosen


def _summaries(manager: PluginManager, info: PluginInfo) -> dict[str, str]:
    """Return the summaries of a plugin's components; "" for one that cannot be used."""
    summaries = {}
    for component in info.components:
        kind, _, name = component.partition(":")
        try:
            spec = manager.component(kind, name)  # type: ignore[arg-type]
        except PluginError:
            summaries[component] = ""
        else:
            summaries[component] = spec.summary
    return summaries


def _row(info: PluginInfo, summaries: dict[str, str]) -> dict[str, Any]:
    return {**dataclasses.asdict(info), "summaries": summaries}


def _show(
    infos: list[PluginInfo],
    summaries: dict[PluginInfo, dict[str, str]],
    checks: dict[PluginInfo, list[ComponentCheck]] | None,
) -> None:
    console = table_console()
    table = Table(box=None, pad_edge=False)
    # The summary, which is the longest, comes last: narrow terminals cut it off or fold it.
    what = "problem" if checks is None else "check"
    for column in (*_ABOUT, what, "observes", "component", "summary"):
        table.add_column(column, overflow="fold")
    for info in infos:
        _add(table, info, summaries[info], None if checks is None else checks[info])
    console.print(table)
    for info in infos:
        if info.problem:
            console.print()
            console.print(
                Text(f"{info.name}: {info.problem}", style="dim" if info.blocked else "red")
            )
        for one in [] if checks is None else checks[info]:
            if one.detail:
                console.print()
                console.print(
                    Text(
                        f"{info.name}: {one.component}: {one.detail}",
                        style="red" if one.state == "wrong" else "dim",
                    )
                )


def _add(
    table: Table,
    info: PluginInfo,
    summaries: dict[str, str],
    checks: list[ComponentCheck] | None,
) -> None:
    """Add the rows of a plugin, one for each component."""
    api = "none" if info.hook_api is None else f"{info.hook_api[0]}.{info.hook_api[1]}"
    observes = ", ".join(h.removeprefix("ajet_") for h in info.hooks if h in OBSERVERS)
    cells = [info.name, info.distribution, info.version, api]
    problem = "blocked" if info.blocked else ("see below" if info.problem else "")
    states = {one.component: one.state for one in checks or ()}
    for component, summary in summaries.items() or [("", "")]:
        state = problem or states.get(component, "")
        styled = Text(state, style=_STYLES.get(state, ""))
        table.add_row(*map(Text, cells), styled, *map(Text, (observes, component, summary)))
        cells, problem, observes = [""] * len(cells), "", ""
