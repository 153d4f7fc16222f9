"""``ajet serve`` and ``ajet gateway``."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import click

from ajet_cli.state import CliState, config_option, pass_state, set_flags
from ajet_core.errors import ConfigError


@click.command()
@click.option("--host", help="Address to listen on.")
@click.option("--port", type=int, help="Port to listen on; 0 picks a free port.")
@click.option("--run-dir", type=click.Path(path_type=Path), help="Directory for the run's files.")
@click.option(
    "--model-root",
    "model_roots",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Directory in which runs may look for models. Repeat for several.",
)
@click.option(
    "--public-url", help="URL at which clients reach this server, if it is behind a proxy."
)
@click.option("--tls-cert", type=click.Path(path_type=Path), help="Certificate chain, PEM.")
@click.option("--tls-key", type=click.Path(path_type=Path), help="Private key, PEM.")
@click.option(
    "--insecure",
    is_flag=True,
    default=None,
    help="Allow an address that other machines can reach, without TLS.",
)
@click.option(
    "--processes",
    type=int,
    help="Answer agents' calls in this many gateway processes; 1 uses the server process.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Log messages of this level and above.",
)
@config_option
@pass_state
def serve(state: CliState, /, **options: object) -> None:
    """Run a swarm server until it is interrupted.

    Each option except --config overrides the setting of the same name in the `server` section of
    the settings file.
    """
    # Click passes an empty tuple for a repeatable option that was not given.
    flags = {name: None if value == () else value for name, value in options.items()}
    settings = state.settings(set_flags("server", **flags))
    import_server().serve(settings)


@click.command()
@click.option("--server", help="HOST:PORT of the server's setting server.gateways_listen.")
@click.option("--url", help="URL at which the server's other gateways reach this one.")
@click.option("--tls", is_flag=True, default=None, help="The server uses TLS there.")
@click.option("--host", help="Address to listen on.")
@click.option("--port", type=int, help="Port to listen on.")
@click.option(
    "--insecure",
    is_flag=True,
    default=None,
    help="Allow an address that other machines can reach, without TLS.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Log messages of this level and above.",
)
@config_option
@pass_state
def gateway(
    state: CliState,
    /,
    server: str | None,
    url: str | None,
    tls: bool | None,
    **options: object,
) -> None:
    """Answer agents' calls for a swarm server on another machine until interrupted.

    --server, --url and --tls override the settings in the section `gateway`, the others those in
    `server`. Both sides need the same server.gateway_token (AJET_SERVER__GATEWAY_TOKEN).
    """
    flags = set_flags("gateway", server=server, url=url, tls=tls)
    settings = state.settings({**flags, **set_flags("server", **options)})
    import_server().serve_gateway(settings)


def import_server() -> ModuleType:
    """Return the module `ajet_server.serve`.

    :raises ConfigError: a package that it requires is not installed.
    """
    try:
        return importlib.import_module("ajet_server.serve")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("ajet_"):
            raise
        if error.name in {"fcntl", "resource"}:
            raise ConfigError(
                "a swarm server needs Linux or macOS; on Windows, use the client with a server "
                "elsewhere (AJET_URL, AJET_TOKEN), or run both in WSL"
            ) from error
        raise ConfigError(
            "the server requires packages that are not installed (no module named "
            f"{error.name!r}): pip install 'agentjet[server]>=0.1'"
        ) from error
