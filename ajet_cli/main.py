"""The group ``ajet``, which finds subcommands without importing them and shows short errors."""

from __future__ import annotations

import importlib
import traceback
from typing import Any

import click

from ajet_cli.state import CliState, config_option
from ajet_core.errors import AjetError, PluginError, UnknownComponentError
from ajet_core.plugin.targets import CORE_DISTRIBUTION, extras_with, install_hint

BUILT_IN: dict[str, tuple[str, str]] = {
    "alert": ("ajet_cli.commands.run.alert:alert", "Send a test alert to all recipients."),
    "budget": ("ajet_cli.commands.run.budget:budget", "Show or change what a run may spend."),
    "config": (
        "ajet_cli.commands.config:config",
        "Show the effective settings and where each comes from.",
    ),
    "doctor": (
        "ajet_cli.commands.doctor:doctor",
        "Check the installation, and print the command that fixes each problem.",
    ),
    "env": ("ajet_cli.commands.env:env", "Create and find Python environments for backends."),
    "engine": (
        "ajet_cli.commands.engine:engine",
        "Show, add or remove the engine's model servers.",
    ),
    "gateway": (
        "ajet_cli.commands.serve:gateway",
        "Answer agents' calls for a server on another machine.",
    ),
    "mixture": (
        "ajet_cli.commands.run.mixture:mixture",
        "Show or change the task mixture.",
    ),
    "monitor": (
        "ajet_cli.commands.run.monitor:monitor",
        "Show runs in a terminal, down to the tokens of an episode.",
    ),
    "new": ("ajet_cli.commands.projects.new:new", "Create a project that trains at once."),
    "pause": ("ajet_cli.commands.run.pause:pause", "Pause a run."),
    "plugins": (
        "ajet_cli.commands.plugins:plugins",
        "List installed plugins and their problems.",
    ),
    "preflight": (
        "ajet_cli.commands.run.preflight:preflight",
        "Check the first batch before it is trained.",
    ),
    "resume": ("ajet_cli.commands.run.pause:resume", "Resume a paused run."),
    "serve": ("ajet_cli.commands.serve:serve", "Run a swarm server."),
    "status": ("ajet_cli.commands.run.status:status", "Show the status of a swarm server."),
    "token": ("ajet_cli.commands.token:token", "Create, list and revoke the tokens of a server."),
    "ui": ("ajet_cli.commands.run.ui:ui", "Open the live page of a server in a browser."),
    "version": ("ajet_cli.commands.version:version", "Show versions."),
}
"""Path and summary of each built-in subcommand, so that ``ajet --help`` imports none of them.

They work without plugins. The other built-in commands are registered like those of plugins.
"""

_INTERRUPTED = 130
_FAILED = 2


class AjetGroup(click.Group):
    """Built-in subcommands and those of plugins, imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all subcommands; only built-in ones if the settings are invalid."""
        ours, theirs, _ = self._plugin_commands(ctx)
        return sorted([*BUILT_IN, *ours, *theirs])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a subcommand; return None if it does not exist."""
        if cmd_name in BUILT_IN:
            module, _, name = BUILT_IN[cmd_name][0].partition(":")
            command = getattr(importlib.import_module(module), name)
            assert isinstance(command, click.Command)
            return command
        manager = _state(ctx).plugins
        try:
            spec = manager.command(cmd_name)
        except UnknownComponentError as error:
            # The message lists unusable plugins, one of which may have the command.
            if "\n" in error.message:
                hint = f"No such command {cmd_name!r}: {error.message}"
            elif extras_with(plugin := f"{CORE_DISTRIBUTION}-{cmd_name}"):
                hint = f"No such command {cmd_name!r}. Install its plugin: {install_hint(plugin)}"
            else:
                return None
            raise click.UsageError(hint, ctx) from error
        return manager.load_command(spec)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of subcommands, using only their summaries."""
        ours, theirs, problem = self._plugin_commands(ctx)
        built_in = {name: summary for name, (_, summary) in BUILT_IN.items()}
        with formatter.section("Commands"):
            formatter.write_dl(sorted({**built_in, **ours}.items()))
        if theirs:
            with formatter.section("Plugin commands"):
                formatter.write_dl(sorted(theirs.items()))
        if problem:
            formatter.write_paragraph()
            formatter.write_text(f"Plugin commands are not shown: {problem}")

    def invoke(self, ctx: click.Context) -> Any:
        """Run a subcommand; an `AjetError` becomes one message and exit status 2.

        So does any exception of another distribution's subcommand, with the name of its plugin.
        """
        try:
            return self._invoke(ctx)
        except AjetError as error:
            if _state(ctx).debug:
                traceback.print_exception(error)
            # Imports Rich, which commands that succeed may not need.
            from ajet_cli.output import echo_plain

            echo_plain(f"ajet: error: {error.message}", err=True)
            ctx.exit(_FAILED)
        except KeyboardInterrupt:
            ctx.exit(_INTERRUPTED)

    def _invoke(self, ctx: click.Context) -> Any:
        """Run a subcommand.

        :raises PluginError: it belongs to another distribution, and raised an exception.
        """
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except (AjetError, BrokenPipeError):
            raise
        except Exception as error:
            name = ctx.invoked_subcommand or ""
            if name in BUILT_IN:
                raise
            manager = _state(ctx).plugins
            spec = manager.command(name)
            if manager.owner(spec) == CORE_DISTRIBUTION:
                raise
            raise PluginError(
                f"{manager.describe(spec)} failed: {type(error).__name__}: {error} (ajet --debug "
                f"{name} shows the traceback)"
            ) from error

    def _plugin_commands(self, ctx: click.Context) -> tuple[dict[str, str], dict[str, str], str]:
        """Return summaries of this distribution's commands and of others, and the error if any."""
        ours: dict[str, str] = {}
        theirs: dict[str, str] = {}
        try:
            manager = _state(ctx).plugins
            for name in manager.names("command"):
                spec = manager.command(name)
                own = manager.owner(spec) == CORE_DISTRIBUTION
                (ours if own else theirs)[name] = spec.summary
        except AjetError as error:
            # Help must work even if ajet.toml is invalid; it shows the error.
            return {}, {}, error.message
        return ours, theirs, ""


def _state(ctx: click.Context) -> CliState:
    return ctx.ensure_object(CliState)


@click.group(cls=AjetGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@config_option
@click.pass_context
def cli(ctx: click.Context, debug: bool) -> None:
    """Train agents by reinforcement learning. The agents run outside the trainer."""
    _state(ctx).debug = debug


def main() -> None:
    """The entry point of the command ``ajet``."""
    cli(prog_name="ajet")


if __name__ == "__main__":
    main()
