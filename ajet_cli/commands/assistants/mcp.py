"""``ajet mcp``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import click

from ajet_cli.mcp.http import PATH, http_app, listen, uvicorn_server
from ajet_cli.mcp.inspecting import AsyncInspectingClient
from ajet_cli.mcp.registry import AssistantTool, ToolRegistry
from ajet_cli.mcp.server import mcp_server
from ajet_cli.mcp.swarm import SwarmTools
from ajet_cli.state import CliState, config_option, pass_state, set_flags
from ajet_core.credentials import find_local
from ajet_core.errors import ConfigError

# Few, so that an assistant learns quickly that the server is away.
_RETRIES = 1


@click.command()
@click.option("--url", help="URL of the server.  [default: AJET_URL, or http://127.0.0.1:8642]")
@click.option("--http", "over_http", is_flag=True, help="Serve over HTTP instead of stdio.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8643, show_default=True, help="With --http."
)
@click.option("--read-only", is_flag=True, help="Offer only tools that change nothing.")
@click.option(
    "--on",
    metavar="PLACES",
    help="File that says where trials of studies run, or 'local'.  [default: local]",
)
@config_option
@pass_state
def mcp(
    state: CliState,
    url: str | None,
    *,
    over_http: bool,
    port: int,
    read_only: bool,
    on: str | None,
) -> None:
    """Offer the tools of a swarm server, and those of studies, to coding assistants over MCP.

    An assistant starts this command itself and talks to it over stdin and stdout: `ajet assist
    install` configures that. What the tools may do is what the server's token allows.

    With --on, studies that the tools start run in that place. No tool chooses it: the file has
    commands, which no assistant should be able to write.

    With --http, it listens on 127.0.0.1, and each request needs the server's token as its bearer
    token.
    """
    settings = state.settings(set_flags("client", url=url)).client
    given = settings.token.get_secret_value() if settings.token else None
    research = _research_tools(on)
    http = port if over_http else None
    asyncio.run(_serve(state, settings.url, given, http, read_only=read_only, research=research))


async def _serve(
    state: CliState,
    url: str,
    given: str | None,
    port: int | None,
    *,
    read_only: bool,
    research: Sequence[AssistantTool],
) -> None:
    """Serve until stdin is closed, or until the process is interrupted.

    :param port: None for stdio.
    """
    async with AsyncInspectingClient(url, given, retries=_RETRIES) as client:

        def token() -> str | None:
            # A server of this user that starts later has a new token file.
            local = None if given else find_local(client.url)
            return local.control if local else given

        registry = ToolRegistry((*SwarmTools(client, state).tools(), *research))
        offered = registry.read_only() if read_only else registry
        server = mcp_server(offered, lambda: [token() or ""])
        if port is None:
            await server.run_stdio_async()
        else:
            with listen(port) as listener:
                host, chosen = listener.getsockname()
                click.echo(f"serving MCP at http://{host}:{chosen}{PATH}", err=True)
                await uvicorn_server(http_app(server, token)).serve([listener])


def _research_tools(on: str | None) -> Sequence[AssistantTool]:
    """Return the tools of studies, for those below the current directory.

    :raises ConfigError: the file of places cannot be used.
    """
    try:
        import scipy

        from ajet_cli.mcp.research import ResearchTools
    except ImportError as error:
        # `agentjet[research]` is not installed.
        if on is None:
            return ()
        raise ConfigError(
            f"ajet mcp --on needs {error.name}: pip install 'agentjet[research]>=0.1'"
        ) from error
    _ = scipy
    return ResearchTools(Path.cwd(), on).tools()
