"""``ajet budget``."""

from __future__ import annotations

from pathlib import Path

import click
from rich.table import Table

from agentjet.client import SwarmClient
from ajet_cli.commands.run.status import spending_rows
from ajet_cli.output import plain, table_console
from ajet_cli.servers import find_server, server_options
from ajet_cli.state import CliState, config_option, pass_state

_RETRIES = 1
_NONE = "none"


class _Limit(click.ParamType[float | None]):
    name = "number"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | None:
        if value == _NONE:
            return None
        try:
            limit = float(str(value))
        except ValueError:
            limit = 0.0
        if not 0 < limit < float("inf"):
            self.fail(f"{value!r} is neither a number above 0 nor {_NONE!r}", param, ctx)
        return limit


@click.command()
@click.option("--usd", type=_Limit(), help="New limit of the cost in USD, or `none`.")
@click.option("--hours", type=_Limit(), help="New limit of the active hours, or `none`.")
@server_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@config_option
@pass_state
@click.pass_context
def budget(
    context: click.Context,
    state: CliState,
    usd: float | None,
    hours: float | None,
    *,
    run_dir: Path | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Show what a run has spent, or change its budget.

    A limit that is not given stays as it is. A run that was paused because its budget was spent
    continues with `ajet resume`.
    """
    given = {
        name: value
        for name, value in (("usd", usd), ("hours", hours))
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
    }
    server = find_server(state, url, run_dir)
    with SwarmClient(server.url, server.token, retries=_RETRIES) as client:
        status = client.status()
        if given:
            before = status.spending.budget.model_dump() if status.spending is not None else {}
            client.set_budget(**{**before, **given})
            status = client.status()
    if status.spending is None:
        click.echo("{}" if as_json else "no run is configured, or the token may not see its costs")
    elif as_json:
        click.echo(status.spending.model_dump_json())
    else:
        table = Table(show_header=False, box=None, pad_edge=False)
        table.add_column(style="bold")
        table.add_column(overflow="fold")
        for name, value, style in spending_rows(status):
            table.add_row(name, plain(value, style))
        table_console().print(table)
