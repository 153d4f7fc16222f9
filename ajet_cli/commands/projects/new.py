"""``ajet new``: create the project of an agent."""

from __future__ import annotations

from pathlib import Path

import click

from ajet_cli.commands.projects.plugin import checked_distribution, checked_name
from ajet_cli.plugin_projects.rendering import create_agent_project
from ajet_cli.state import config_option


@click.group()
@config_option
def new() -> None:
    """Create a project that trains at once."""


@new.command()
@click.argument("name")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory to create.  [default: NAME]",
)
@config_option
def agent(name: str, directory: Path | None) -> None:
    """Create the project of an agent called NAME.

    It has an agent, a reward, tasks, their tests, and a program that trains the agent. As it is, it
    trains a tiny model on a CPU.
    """
    name = checked_distribution(checked_name(name))
    target = directory or Path(name)
    create_agent_project(target, name)
    click.echo(
        f"{target} is ready. To try it:\n"
        f"  cd {target}\n"
        "  pytest\n"
        "  python train.py\n"
        "README.md says how to make it yours."
    )
