"""``ajet pause`` and ``ajet resume``."""

from __future__ import annotations

import click

from ajet_core.cli.state import CliState, config_option, pass_state, set_flags
from ajet_core.client import SwarmClient

_URL_HELP = "The server.  [default: AJET_URL, or http://127.0.0.1:8642]"
_RETRIES = 1


def _client(state: CliState, url: str | None) -> SwarmClient:
    settings = state.settings(set_flags("client", url=url)).client
    token = settings.token.get_secret_value() if settings.token else None
    return SwarmClient(settings.url, token, retries=_RETRIES)


@click.command()
@click.option("--url", help=_URL_HELP)
@click.option(
    "--reason",
    default="paused by hand",
    show_default=True,
    help="Why; whoever has control sees it.",
)
@config_option
@pass_state
def pause(state: CliState, url: str | None, reason: str) -> None:
    """Let a run give out no more episodes and train no more batches; open episodes go on."""
    with _client(state, url) as client:
        client.pause_engine(reason)
    click.echo("paused; `ajet resume` lets it go on")


@click.command()
@click.option("--url", help=_URL_HELP)
@config_option
@pass_state
def resume(state: CliState, url: str | None) -> None:
    """Let a paused run go on, and give tasks that were set aside another chance."""
    with _client(state, url) as client:
        status = client.resume_engine()
    click.echo(f"run {status.run_id} goes on")
