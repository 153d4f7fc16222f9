"""Every option has a help text."""

from __future__ import annotations

from collections.abc import Iterator

import click

from ajet_cli.main import cli

WITHOUT_HELP = {
    "eval --concurrency",
    "generate --concurrency",
    "generate --max-tokens",
    "generate --seed",
    "research bench --suite",
}
"""Options that lack it. `docs/good-first-issues.md` has an entry for each command."""


def options(command: click.Command, name: str) -> Iterator[tuple[str, click.Option]]:
    """Each option of a command and its subcommands, with its name."""
    if isinstance(command, click.Group):
        for sub, child in command.commands.items():
            yield from options(child, f"{name} {sub}")
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield f"{name} {parameter.opts[0]}", parameter


def test_each_option_has_a_help_text() -> None:
    with click.Context(cli) as context:
        lacking = {
            option
            for name in cli.list_commands(context)
            for command in [cli.get_command(context, name)]
            if command is not None
            for option, parameter in options(command, name)
            if not parameter.help
        }
    assert lacking == WITHOUT_HELP
