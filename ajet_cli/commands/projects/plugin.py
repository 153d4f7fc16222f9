"""``ajet plugin``: create, update and check the project of a plugin."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import sys
from pathlib import Path
from typing import Any

import click
from packaging.utils import canonicalize_name

from ajet_cli.plugin_projects.publishing import check_project
from ajet_cli.plugin_projects.rendering import (
    KINDS,
    create_project,
    read_answers,
    update_project,
)
from ajet_cli.state import CliState, config_option, pass_state
from ajet_core.errors import ConfigError
from ajet_core.plugin.kinds import BY_NAME, RESERVED_COMMANDS
from ajet_core.plugin.targets import CORE_DISTRIBUTION, extras_with

PACKAGES = frozenset(
    {"core", "cli", "engines", "exec", "installation", "server", "stores", "testing", "torch"}
    | {"loggers", "research", "sources", "training", "worlds"}
)
"""Names after ``ajet_`` of agentjet's own packages."""

OTHER_WORDS = {
    "adapter": "agent",
    "benchmark": "source",
    "box": "sandbox",
    "callback": "observer",
    "container": "sandbox",
    "dataset": "reader",
    "environment": "world",
    "estimator": "advantage",
    "framework": "agent",
    "reward": "judge",
    "tracker": "logger",
}
"""Other words for kinds."""


class KindType(click.ParamType[str]):
    """A kind of component."""

    name = "kind"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the kind, or refuse the value and name the likeliest one."""
        word = str(value).lower()
        if word not in KINDS:
            close = difflib.get_close_matches(word, [*KINDS, *OTHER_WORDS], n=1)
            hint = f" Did you mean {OTHER_WORDS.get(close[0], close[0])!r}?" if close else ""
            self.fail(f"{value!r} is not a kind.{hint} Kinds: {', '.join(KINDS)}", param, ctx)
        return word


_DIRECTORY = click.Path(path_type=Path, file_okay=False)


@click.group()
@config_option
def plugin() -> None:
    """Create, update and check the project of a plugin."""


@plugin.command()
@click.argument("kind", type=KindType())
@click.argument("name")
@click.option("--distribution", help="Name of the distribution.  [default: ajet-NAME]")
@click.option(
    "--directory", type=_DIRECTORY, help="Directory to create.  [default: that of the distribution]"
)
@click.option("--description", help="One line that says what the plugin does.")
@click.option("--author", help="Name of the author.  [default: that of git]")
@click.option("--email", help="E-mail address of the author.  [default: that of git]")
@click.option("--license", help="Apache-2.0, MIT or BSD-3-Clause.  [default: Apache-2.0]")
@click.option("--python", help="Oldest version of Python.  [default: 3.11]")
@click.option(
    "--answers",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help='TOML file with values of these options, such as author = "Ann".',
)
@click.option("--ask", is_flag=True, help="Ask in the terminal for what no option gives.")
@config_option
@pass_state
def new(
    state: CliState,
    /,
    *,
    kind: str,
    name: str,
    directory: Path | None,
    answers: Path | None,
    ask: bool,
    **options: str | None,
) -> None:
    """Create the project of a plugin with a component of KIND called NAME.

    The component keeps underscores of NAME, such as those of leave_one_out; in the name of the
    distribution they become hyphens. A prefix ajet- is left out of the component's name.

    The project works as it is: it can be installed, and its tests pass, which include agentjet's
    suite for the kind. Kinds are those of docs/plugins.md, and `observer`.
    """
    if ask and not sys.stdin.isatty():
        raise click.UsageError("--ask needs a terminal; give the answers by options instead")
    short = _checked(state, kind, name)
    given = read_answers(answers) if answers is not None else {}
    given |= {key: value for key, value in options.items() if value is not None}
    distribution = given.get("distribution", f"ajet-{canonicalize_name(short)}")
    target = directory or Path(checked_distribution(distribution))
    create_project(target, {**given, "kind": kind, "name": short}, ask=ask)
    click.echo(
        f"{target} is ready. To try it:\n"
        f"  cd {target}\n"
        "  pip install -e '.[test]'\n"
        "  ajet plugins\n"
        "  pytest\n"
        "Keep it in git, so that `ajet plugin update` can bring changes of the template.\n"
        "Before you publish it, run `ajet plugin check`."
    )


@plugin.command()
@click.argument("directory", type=_DIRECTORY, default=".")
@config_option
def update(directory: Path) -> None:
    """Apply the changes of agentjet's template to the project in DIRECTORY.

    Your own changes stay. Where both changed the same lines, the file gets conflict markers, and
    the command ends with 1. The project must be in a git repository without uncommitted changes.
    """
    conflicts = update_project(directory)
    if conflicts:
        click.echo("conflicts, to be resolved and committed: " + ", ".join(conflicts))
        sys.exit(1)
    click.echo("updated: see the changes with `git diff`, and commit them")


@plugin.command()
@click.argument("directory", type=_DIRECTORY, default=".")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
@config_option
def check(directory: Path, as_json: bool) -> None:
    """Say what the project in DIRECTORY lacks for being published.

    Ends with 1 if there are errors, which users of the plugin would notice. Advice is for the rest.
    A wheel in its folder dist is checked, too.
    """
    lacks = check_project(directory)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(lack) for lack in lacks], indent=2))
    for lack in () if as_json else lacks:
        click.secho(f"{lack.weight}: {lack.text}", fg="red" if lack.weight == "error" else None)
    if any(lack.weight == "error" for lack in lacks):
        sys.exit(1)
    if not as_json:
        click.echo("nothing that is required is missing")


def checked_name(name: str) -> str:
    """Return the normal form of a name.

    :raises ConfigError: it cannot be the name of a distribution.
    """
    normal = canonicalize_name(name)
    if re.fullmatch(r"[A-Za-z0-9._-]+", name) is None or not re.fullmatch(
        r"[a-z][a-z0-9]*(-[a-z0-9]+)*", normal
    ):
        raise ConfigError(
            f"{name!r} is not a valid name: use letters, digits and single hyphens, and begin with "
            "a letter"
        )
    return normal


def _checked(state: CliState, kind: str, name: str) -> str:
    """Return the name without ``ajet-``, in lower case, with hyphens and underscores as they are.

    :raises ConfigError: it cannot be the name of a distribution, or agentjet has it already.
    """
    normal = checked_name(name).removeprefix("ajet-")
    short = re.sub("^ajet[-_]", "", name.lower().replace(".", "-"))
    if re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", short) is None:
        # It has several separators in a row.
        short = normal
    if extras_with(f"{CORE_DISTRIBUTION}-{normal}"):
        raise ConfigError(f"agentjet has a package of the name {short!r}: choose another one")
    taken = short if kind == "command" and short in RESERVED_COMMANDS else ""
    if kind in BY_NAME:
        for plugin_name in state.plugins.names(kind):
            # leave-one-out beside leave_one_out would mislead users.
            if canonicalize_name(plugin_name) == normal:
                component = state.plugins.component(kind, plugin_name)
                taken = (
                    plugin_name if state.plugins.owner(component) == CORE_DISTRIBUTION else taken
                )
    if taken:
        raise ConfigError(f"agentjet has the {kind} {taken!r} already: choose another name")
    return short


def checked_distribution(distribution: str) -> str:
    """Return the name of a distribution as it is.

    :raises ConfigError: agentjet has a package or distribution of this name.
    """
    name = canonicalize_name(distribution)
    package = name.removeprefix("ajet-").replace("-", "_")
    own = name == CORE_DISTRIBUTION or name.startswith(f"{CORE_DISTRIBUTION}-")
    if own or (name.startswith("ajet-") and package in PACKAGES):
        raise ConfigError(f"agentjet has a package of the name {name!r}: choose another name")
    return distribution
