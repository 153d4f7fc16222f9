"""``ajet assist``."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import click

from ajet_cli.assist.hosts import HOSTS, ServerCommand
from ajet_cli.assist.installing import PlannedFile, plan, write
from ajet_core.errors import ConfigError

# Assistants might not pass them on. None of them is a secret.
_VARIABLES = ("AJET_URL", "AJET_CONFIG", "XDG_STATE_HOME")


@click.group()
def assist() -> None:
    """Set up coding assistants to train agents with agentjet."""


@assist.command()
@click.option(
    "--for",
    "names",
    required=True,
    metavar="NAMES",
    help=f"Assistants, with commas between: {','.join(HOSTS)}.",
)
@click.option(
    "--dir",
    "root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    help="Directory of the project.  [default: the working directory]",
)
@click.option("--url", help="URL of the swarm server.  [default: AJET_URL, or this machine's]")
@click.option("--read-only", is_flag=True, help="Offer only tools that change nothing.")
@click.option(
    "--on",
    metavar="PLACES",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File that says where trials of studies run.  [default: on this machine]",
)
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 if files are stale.")
@click.option("--print", "show", is_flag=True, help="Write nothing; print what is merged.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def install(
    *,
    names: str,
    root: Path,
    url: str | None,
    read_only: bool,
    on: Path | None,
    check: bool,
    show: bool,
    as_json: bool,
) -> None:
    """Configure assistants in a project: the tools of `ajet mcp`, skills, a part of AGENTS.md.

    Entries are merged into existing files, whose other content stays as it is. Files that cannot be
    parsed, or that lead out of the project, are refused, and then nothing is written.
    """
    unknown = [name for name in names.split(",") if name not in HOSTS]
    if unknown:
        raise click.UsageError(
            f"unknown assistant {unknown[0]!r}; there are {', '.join(HOSTS)} (--for)"
        )
    if importlib.util.find_spec("mcp") is None:
        raise ConfigError("`ajet mcp` requires the package mcp: pip install 'agentjet[mcp]>=0.1'")
    environ = {name: os.environ[name] for name in _VARIABLES if os.environ.get(name)}
    environ |= {"AJET_URL": url} if url else {}
    command = ServerCommand(read_only, environ, str(on.resolve()) if on else "")
    planned = plan(root, [HOSTS[name] for name in names.split(",")], command)
    if not (check or show):
        write(root, planned)
    if as_json:
        click.echo(json.dumps({"files": [{"path": f.path, "state": f.state} for f in planned]}))
    elif show:
        for file in planned:
            click.echo(f"--- {file.path}\n{file.shown}")
    else:
        for file in planned:
            click.echo(f"{file.path}: {_word(file, check)}")
    if check and any(file.state in ("missing", "stale") for file in planned):
        raise click.exceptions.Exit(1)


def _word(file: PlannedFile, check: bool) -> str:
    if file.state == "edited":
        return "kept, because it was edited (delete it to get the current version)"
    if check or file.state == "current":
        return file.state
    return "added" if file.state == "missing" else "updated"
