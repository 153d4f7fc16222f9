"""``ajet engine``."""

from __future__ import annotations

import time
from pathlib import Path

import click
from rich.table import Table

from agentjet.client import SwarmClient
from ajet_cli.output import plain, table_console
from ajet_cli.servers import find_server, server_options
from ajet_cli.state import CliState, config_option, pass_state
from ajet_core.protocol import EngineServers

_RETRIES = 1
_POLL_SECONDS = 0.5

url_option = click.option(
    "--url", help="URL of the swarm server.  [default: AJET_URL, or http://127.0.0.1:8642]"
)
run_dir_option = click.option(
    "--run-dir", type=click.Path(path_type=Path), help="Run directory of the swarm server."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group()
def engine() -> None:
    """Show, add or remove the model servers behind the engine of a run."""


@engine.command("list")
@server_options
@json_option
@config_option
@pass_state
def list_servers(state: CliState, run_dir: Path | None, url: str | None, as_json: bool) -> None:
    """Show the model servers and their states: those of RUN_DIR's server, or of --url."""
    with _client(state, url, run_dir) as client:
        _print(client.engine_servers(), as_json)


@engine.command()
@click.argument("server")
@click.option("--no-wait", is_flag=True, help="Do not wait until the server is up.")
@run_dir_option
@url_option
@json_option
@config_option
@pass_state
def add(
    state: CliState,
    server: str,
    *,
    no_wait: bool,
    run_dir: Path | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Add the running model server at the URL SERVER.

    It gets the latest weights before its first request.
    """
    with _client(state, url, run_dir) as client:
        before = set(client.engine_servers().servers)
        servers = client.add_engine_server(server)
        # The server's list may write the URL in another way.
        added = min(set(servers.servers) - before, default=server.rstrip("/"))
        if not no_wait:
            click.echo(f"waiting for {server} (Ctrl-C to stop waiting)", err=True)
        while not no_wait and servers.servers.get(added) == "starting":
            time.sleep(_POLL_SECONDS)
            servers = client.engine_servers()
    _print(servers, as_json)
    if servers.servers.get(added, "up") not in {"up", "starting"}:
        raise SystemExit(1)


@engine.command()
@click.argument("server")
@run_dir_option
@url_option
@json_option
@config_option
@pass_state
def remove(
    state: CliState, server: str, *, run_dir: Path | None, url: str | None, as_json: bool
) -> None:
    """Remove the model server at the URL SERVER; its requests continue on the others."""
    with _client(state, url, run_dir) as client:
        _print(client.remove_engine_server(server), as_json)


def _client(state: CliState, url: str | None, run_dir: Path | None) -> SwarmClient:
    server = find_server(state, url, run_dir)
    return SwarmClient(server.url, server.token, retries=_RETRIES)


def _print(servers: EngineServers, as_json: bool) -> None:
    if as_json:
        click.echo(servers.model_dump_json())
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("server")
    table.add_column("state")
    for name, now in servers.servers.items():
        table.add_row(plain(name), plain(now))
    table_console().print(table)
