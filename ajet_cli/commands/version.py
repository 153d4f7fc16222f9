"""``ajet version``."""

from __future__ import annotations

import json
import platform

import click

from ajet_core import __version__
from ajet_core.plugin import HOOK_API
from ajet_core.protocol import PROTOCOL_VERSION


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def version(as_json: bool) -> None:
    """Show the versions of agentjet, its protocol, its hook API and Python."""
    versions = {
        "agentjet": __version__,
        "protocol": PROTOCOL_VERSION,
        "hook_api": f"{HOOK_API[0]}.{HOOK_API[1]}",
        "python": platform.python_version(),
    }
    if as_json:
        click.echo(json.dumps(versions))
        return
    for name, value in versions.items():
        click.echo(f"{name.replace('_', ' ')} {value}")
