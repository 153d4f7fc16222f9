"""``ajet mixture``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
from rich.table import Table

from agentjet.client import SwarmClient
from ajet_cli.output import plain, table_console
from ajet_cli.servers import find_server
from ajet_cli.state import CliState, config_option, pass_state
from ajet_core.protocol import MixtureStatus, TagProgress

_RETRIES = 1


@click.command()
@click.argument("words", nargs=-1, metavar="[RUN_DIR] [TAG=RATIO]...")
@click.option("--url", help="URL of the server.  [default: AJET_URL, or http://127.0.0.1:8642]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@config_option
@pass_state
def mixture(state: CliState, words: tuple[str, ...], url: str | None, as_json: bool) -> None:
    """Show the task mixture, or change it from the next batch on.

    The server is that of RUN_DIR, or of --url. The ratios sum to 1: `ajet mixture math=0.4
    code=0.6`.
    """
    run_dir, ratios = _split(words)
    wanted = _parsed(ratios)
    server = find_server(state, url, run_dir)
    with SwarmClient(server.url, server.token, retries=_RETRIES) as client:
        status = client.set_mixture(wanted) if wanted else client.mixture()
    if as_json:
        click.echo(status.model_dump_json())
    elif status.config is None:
        click.echo("there is no mixture: episodes of all tags are accepted")
    else:
        table_console().print(_table(status))


def _split(words: Sequence[str]) -> tuple[Path | None, Sequence[str]]:
    """Separate the run directory, if the first word is one, from the ratios."""
    # Directories of sweeps are often called like "lr=0.1", so look.
    if words and ("=" not in words[0] or Path(words[0]).is_dir()):
        return Path(words[0]), words[1:]
    return None, words


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
            plain(tag),
            *_numbers(coming if now is None else now.ratio, coming),
            *(["", "", "", ""] if now is None else _progress(now)),
        )
    return table


def _numbers(*values: float | None) -> list[str]:
    return ["" if value is None else f"{value:g}" for value in values]


def _progress(now: TagProgress) -> list[str]:
    blocked = "no client is working on it; the other tags share its slots" if now.blocked else ""
    return [str(now.slots), str(now.ready), str(now.under_way), blocked]
