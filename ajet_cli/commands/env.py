"""``ajet env``."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ajet_cli.output import table_console
from ajet_cli.state import CliState, config_option, pass_state
from ajet_core.errors import ConfigError
from ajet_installation.create import Order, ProgressCallbacks, create_environment
from ajet_installation.environment import (
    DIRECTORY,
    Environment,
    create_command,
    find_environments,
)
from ajet_installation.installers import InstallerName
from ajet_installation.pythons import find_python
from ajet_installation.recipes import Device, recipe, recipes
from ajet_installation.sources import source_of, source_tree

_DIRECTORY = click.Path(path_type=Path, file_okay=False)
_SHOWN = 60


@click.group()
@config_option
def env() -> None:
    """Create and find Python environments for backends whose requirements conflict."""


@env.command()
@click.argument("name")
@click.option("--cpu", "device", flag_value="cpu", help="Install for a machine without a GPU.")
@click.option(
    "--gpu",
    "device",
    flag_value="gpu",
    help="Install for NVIDIA GPUs.  [default: what this machine has]",
)
@click.option(
    "--path", type=_DIRECTORY, help="Directory of the environment.  [default: .venvs/NAME]"
)
@click.option(
    "--python",
    metavar="PYTHON",
    help="Python interpreter to use.  [default: one that the backend supports]",
)
@click.option("--force", is_flag=True, help="Replace an existing environment.")
@click.option(
    "--source",
    type=_DIRECTORY,
    help="Source tree of agentjet.  [default: the one that ajet runs from, if any]",
)
@click.option("--find-links", type=_DIRECTORY, help="Directory with wheels of agentjet.")
@click.option(
    "--installer",
    type=click.Choice(["pip", "uv"]),
    help="Installer to use.  "
    "[default: uv if it is installed and supports pip's configuration, else pip]",
)
@click.option(
    "--unpinned", is_flag=True, help="Install the newest versions that fit, which are untested."
)
@config_option
@pass_state
def create(
    state: CliState,
    *,
    name: str,
    device: Device | None,
    path: Path | None,
    python: str | None,
    force: bool,
    source: Path | None,
    find_links: Path | None,
    installer: InstallerName | None,
    unpinned: bool,
) -> None:
    """Create the environment of a backend, with agentjet and the backend's plugin.

    An existing environment is not replaced, but gets the plugin if the plugin is missing. Packages
    come from the sources that pip is configured to use, also with uv.
    """
    chosen, its_device = recipe(name), device or device_here()
    tree = source if source is not None or find_links is not None else source_tree()
    order = Order(
        recipe=chosen,
        device=its_device,
        directory=_directory(path or _root(state) / name),
        python=find_python(chosen.build(its_device).python, python),
        source=source_of(chosen, tree, find_links),
        force=force,
        pinned=not unpinned,
        installer=installer,
    )
    console = Console(stderr=True)
    with console.status(f"{name} for {its_device}") as status:
        progress = ProgressCallbacks(
            step=lambda text: console.print(Text(f"{name}: {text}")),
            line=lambda text: status.update(Text(f"{name} for {its_device}  {text[:_SHOWN]}")),
        )
        environment = create_environment(order, progress)
    if environment.record.note:
        console.print(Text(f"{name}: {environment.record.note}"))
    click.echo(f"{environment.directory} is ready")


@env.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
@config_option
@pass_state
def list_(state: CliState, as_json: bool) -> None:
    """List the existing environments, and those that can be created."""
    environments = find_environments(state.settings())
    if as_json:
        rows = [{"path": str(e.directory), **asdict(e.record)} for e in environments.values()]
        click.echo(json.dumps(rows, indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for column in ("name", "for", "Python", "plugin", "GB", "where"):
        table.add_column(column, overflow="fold")
    for name, its_recipe in recipes().items():
        if (environment := environments.get(name)) is not None:
            table.add_row(*map(Text, _cells(environment)))
        else:
            command = f"not created: {create_command(name, device_here())}"
            table.add_row(*map(Text, (name, its_recipe.summary, "", "", "", command)), style="dim")
    table_console().print(table)


def _cells(environment: Environment) -> tuple[str, ...]:
    record = environment.record
    return (
        record.name,
        record.device,
        record.python,
        ", ".join(record.plugins) or "none",
        f"{record.bytes / 1e9:.1f}",
        str(environment.directory),
    )


@env.command(name="path")
@click.argument("name")
@config_option
@pass_state
def path_(state: CliState, name: str) -> None:
    """Print the directory of an environment."""
    environments = find_environments(state.settings())
    if name not in environments:
        command = create_command(recipe(name).name, device_here())
        raise ConfigError(f"there is no environment {name}: create it with {command}")
    click.echo(environments[name].directory)


def _directory(path: Path) -> Path:
    directory = path.absolute()
    if directory.name == "..":
        directory = directory.resolve()
    if not directory.name:
        raise ConfigError(f"{directory} cannot become an environment: choose another --path")
    return directory


def _root(state: CliState) -> Path:
    return state.settings().workers.environments or Path.cwd() / DIRECTORY


def device_here() -> Device:
    """Return the device of this machine; ``nvidia-smi`` is part of NVIDIA's driver."""
    return "gpu" if shutil.which("nvidia-smi") is not None else "cpu"
