"""``ajet pause`` and ``ajet resume``."""

from __future__ import annotations

import click

from agentjet.client import SwarmClient
from ajet_cli.state import CliState, config_option, pass_state, set_flags

_URL_HELP = "URL of the server.  [default: AJET_URL, or http://127.0.0.1:8642]"
_RETRIES = 1


def _client(state: CliState, url: str | None) -> SwarmClient:
    settings = state.settings(set_flags("client", url=url)).client
    token = settings.token.get_secret_value() if settings.token else None
    return SwarmClient(settings.url, token, retries=_RETRIES)


@click.command()
@click.option("--url", help=_URL_HELP)
@click.option(
    "--reason",
    default="paused manually",
    show_default=True,
    help="Reason, shown to holders of a control token.",
)
@config_option
@pass_state
def pause(state: CliState, url: str | None, reason: str) -> None:
    """Pause a run: no episode starts and no batch is trained. Open episodes continue."""
    with _client(state, url) as client:
        client.pause_engine(reason)
    click.echo("paused; run `ajet resume` to continue")


@click.command()
@click.option("--url", help=_URL_HELP)
@click.option(
    "--from-step",
    type=click.IntRange(min=0),
    metavar="N",
    help="First go back to the checkpoint of step N; 0 is the model that the run started with.",
)
@click.option(
    "--retrain", is_flag=True, help="Train the batches after step N again, instead of new ones."
)
@config_option
@pass_state
def resume(state: CliState, url: str | None, from_step: int | None, retrain: bool) -> None:
    """Resume a paused run, and retry tasks that were quarantined.

    With --from-step, the run loads the checkpoint of that step and continues from it. Later batches
    are kept for inspection (`ajet inspect --refused`), and are trained only with --retrain.
    """
    if retrain and from_step is None:
        raise click.UsageError(
            "--retrain applies to the batches after --from-step N: give --from-step too"
        )
    with _client(state, url) as client:
        status = client.resume_engine(from_step, retrain=retrain)
    back = "" if from_step is None else f", from the checkpoint of step {from_step}"
    click.echo(f"run {status.run_id} resumed{back}")
