"""``ajet mixture``."""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.table import Table

from agentjet.client import SwarmClient
from ajet_cli.output import table_console
from ajet_cli.state import CliState, config_option, pass_state, set_flags
from ajet_core.protocol import MixtureStatus, TagProgress

_RETRIES = 1


@click.command()
@click.argument("ratios", nargs=-1, metavar="[TAG=RATIO]...")
@click.option("--url", help="URL of the server.  [default: AJET_URL, or http://127.0.0.1:8642]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@config_option
@pass_state
def mixture(state: CliState, ratios: tuple[str, ...], url: str | None, as_json: bool) -> None:
    """Show the task mixture, or change it from the next batch on.

    The ratios sum to 1: `ajet mixture math=0.4 code=0.6`.
    """
    wanted = _parsed(ratios)
    settings = state.settings(set_flags("client", url=url)).client
    token = settings.token.get_secret_value() if settings.token else None
    with SwarmClient(settings.url, token, retries=_RETRIES) as client:
        status = client.set_mixture(wanted) if wanted else client.mixture()
    if as_json:
        click.echo(status.model_dump_json())
    elif status.config is None:
        click.echo("there is no mixture: episodes of all tags are accepted")
    else:
        table_console().print(_table(status))


def _parsed(ratios: Sequence[str]) -> dict[str, float]:
    parsed: dict[str, float] = {}
    for text in ratios:
        tag, equals, value = text.rpartition("=")
        try:
            if not (equals and tag) or tag in parsed:
                raise ValueError
            parsed[tag] = float(value)
        except ValueError:
            raise click.UsageError(
                f"{text!r} is not of the form TAG=RATIO, such as math=0.4, with each tag once"
            ) from None
    return parsed


def _table(status: MixtureStatus) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("tag", "ratio", "of the next batch", "slots", "ready", "under way", ""):
        table.add_column(name, justify="left" if name in {"tag", ""} else "right")
    # If no batch is being filled, the next one is the first.
    following = status.step + bool(status.tags)
    ratios = status.config.at(following) if status.config is not None else {}
    for tag in sorted({*ratios, *status.tags}):
        now, coming = status.tags.get(tag), ratios.get(tag)
        table.add_row(
            tag,
            *_numbers(coming if now is None else now.ratio, coming),
            *(["", "", "", ""] if now is None else _progress(now)),
        )
    return table


def _numbers(*values: float | None) -> list[str]:
    return ["" if value is None else f"{value:g}" for value in values]


def _progress(now: TagProgress) -> list[str]:
    blocked = "no client is working on it; the other tags share its slots" if now.blocked else ""
    return [str(now.slots), str(now.ready), str(now.under_way), blocked]
