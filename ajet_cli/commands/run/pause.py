"""``ajet pause`` and ``ajet resume``."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from agentjet.client import SwarmClient
from ajet_cli.servers import find_server, server_options
from ajet_cli.state import CliState, config_option, pass_state

_RETRIES = 1


def _client(state: CliState, url: str | None, run_dir: Path | None) -> SwarmClient:
    server = find_server(state, url, run_dir)
    return SwarmClient(server.url, server.token, retries=_RETRIES)


@click.command()
@server_options
@click.option(
    "--reason",
    default="paused manually",
    show_default=True,
    help="Reason, shown to holders of a control token.",
)
@config_option
@pass_state
def pause(state: CliState, run_dir: Path | None, url: str | None, reason: str) -> None:
    """Pause a run: no episode starts and no batch is trained. Open episodes continue."""
    with _client(state, url, run_dir) as client:
        client.pause_engine(reason)
    chosen = "" if run_dir is None else f" {shlex.quote(str(run_dir))}"
    click.echo(f"paused; run `ajet resume{chosen}` to continue")


@click.command()
@server_options
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
def resume(
    state: CliState,
    run_dir: Path | None,
    url: str | None,
    from_step: int | None,
    retrain: bool,
) -> None:
    """Resume a paused run, and retry tasks that were quarantined.

    With --from-step, the run loads the checkpoint of that step and continues from it. Later batches
    are kept for inspection (`ajet inspect --refused`), and are trained only with --retrain.
    """
    if retrain and from_step is None:
        raise click.UsageError(
            "--retrain applies to the batches after --from-step N: give --from-step too"
        )
    with _client(state, url, run_dir) as client:
        status = client.resume_engine(from_step, retrain=retrain)
    back = "" if from_step is None else f", from the checkpoint of step {from_step}"
    click.echo(f"run {status.run_id} resumed{back}")
