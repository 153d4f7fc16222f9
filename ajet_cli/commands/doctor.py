"""``ajet doctor``."""

from __future__ import annotations

import dataclasses
import json

import click
from rich.table import Table
from rich.text import Text

from ajet_cli.commands.env import device_here
from ajet_cli.output import table_console
from ajet_cli.state import CliState, config_option, pass_state
from ajet_installation.doctor import Diagnosis, examine
from ajet_installation.mending import cannot_share
from ajet_installation.recipes import recipes

_STYLES = {"ok": "green", "absent": "dim", "wrong": "red"}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@config_option
@pass_state
@click.pass_context
def doctor(ctx: click.Context, state: CliState, as_json: bool) -> None:
    """Check the installation, and print the command that fixes each problem.

    The exit status is 1 if something that is installed does not work.
    """
    device = device_here()
    findings = examine(state.settings(), state.plugins, device)
    notes = cannot_share(recipes().values(), device)
    if as_json:
        rows = [dataclasses.asdict(finding) for finding in findings]
        click.echo(json.dumps({"findings": rows, "notes": notes}, indent=2))
    else:
        _show(findings, notes)
    if any(finding.state == "wrong" for finding in findings):
        ctx.exit(1)


def _show(findings: list[Diagnosis], notes: list[str]) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("", "version", "state", "found"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        style = _STYLES[finding.state]
        cells = (finding.what, finding.version, finding.state, finding.detail)
        table.add_row(*map(Text, cells), style=style)
        if finding.remedy:
            table.add_row("", "", "", Text(f"  {finding.remedy}", style="bold"))
    console = table_console()
    console.print(table)
    for note in notes:
        console.print()
        console.print(Text(note))
    console.print()
    console.print(_verdict(findings))


def _verdict(findings: list[Diagnosis]) -> Text:
    wrong = [finding.what for finding in findings if finding.state == "wrong"]
    if wrong:
        text = f"wrong: {', '.join(wrong)}. Run the command below each of them."
        return Text(text, style=_STYLES["wrong"])
    absent = any(finding.state == "absent" for finding in findings)
    rest = " What is absent is optional: its command installs it, if you want it." if absent else ""
    return Text(f"All that is installed works.{rest}", style=_STYLES["ok"])
