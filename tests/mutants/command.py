"""Mutations of a command, made when it is loaded: nothing may import it before."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ajet_core.errors import AjetError
from ajet_core.plugin import PluginManager
from tests.mutants.planting import Mutants, around

command = Mutants("command", "tests/inspect/test_command_suite.py::TestExport")
ALL = (command,)


def loaded(change: Callable[[click.Command], None]) -> None:
    """Change the command when it is loaded."""

    def load(original: Any, self: Any, spec: Any) -> Any:
        made = original(self, spec)
        if spec.name == "export" and not vars(made).get("changed"):
            vars(made)["changed"] = True
            change(made)
        return made

    around(PluginManager, "load_command", load)


def called(by: Callable[..., Any]) -> None:
    """Replace what the command does by `by`, whose first argument is the original."""

    def change(made: click.Command) -> None:
        original = made.callback
        made.callback = lambda **options: by(original, **options)

    loaded(change)


def failing(by: Callable[[AjetError], None]) -> None:
    """Replace what happens to an error."""

    def call(original: Any, **options: Any) -> None:
        try:
            original(**options)
        except AjetError as error:
            by(error)

    called(call)


@command
def the_command_has_no_help() -> None:
    def change(made: click.Command) -> None:
        made.help = None

    loaded(change)


@command
def an_option_has_no_help() -> None:
    def change(made: click.Command) -> None:
        (step,) = [p for p in made.params if p.name == "step"]
        vars(step)["help"] = None

    loaded(change)


@command
def an_argument_is_not_explained() -> None:
    def change(made: click.Command) -> None:
        made.help = (made.help or "").replace("RUN", "It")

    loaded(change)


@command
def unknown_options_are_ignored() -> None:
    def change(made: click.Command) -> None:
        made.context_settings = {"ignore_unknown_options": True, "allow_extra_args": True}

    loaded(change)


@command
def a_failure_ends_with_0() -> None:
    failing(lambda error: click.echo(f"error: {error.message}", err=True))


@command
def a_failure_is_printed_to_the_output() -> None:
    def fail(error: AjetError) -> None:
        click.echo(f"error: {error.message}")
        sys.exit(2)

    failing(fail)


@command
def a_failure_is_a_traceback() -> None:
    def fail(error: AjetError) -> None:
        raise RuntimeError(error.message)

    failing(fail)


@command
def a_failure_is_silent() -> None:
    failing(lambda _: sys.exit(1))


@command
def a_failure_does_not_name_its_cause() -> None:
    def fail(error: AjetError) -> None:
        raise click.ClickException("it did not work")

    failing(fail)


@command
def a_failure_leaves_a_file() -> None:
    def write(original: Any, **options: Any) -> None:
        options["out"].touch()
        original(**{**options, "force": True})

    called(write)


@command
def a_log_is_written_where_it_is_started() -> None:
    def call(original: Any, **options: Any) -> None:
        Path("export.log").touch()
        original(**options)

    called(call)


@command
def success_ends_with_1() -> None:
    def call(original: Any, **options: Any) -> None:
        original(**options)
        sys.exit(1)

    called(call)


@command
def it_asks_in_a_terminal() -> None:
    def call(original: Any, **options: Any) -> None:
        click.confirm("Really?", abort=True)
        original(**options)

    called(call)


@command
def it_is_colourful_in_a_pipe() -> None:
    def call(original: Any, **options: Any) -> None:
        original(**options)
        click.secho("done", fg="green", color=True)

    called(call)


@command
def it_reads_the_working_directory() -> None:
    def call(original: Any, **options: Any) -> None:
        Path("pyproject.toml").read_text(encoding="utf-8")
        original(**options)

    called(call)


@command
def registering_it_imports_numpy() -> None:
    import numpy  # noqa: F401


@command
def registering_it_imports_its_module() -> None:
    import ajet_cli.commands.export  # noqa: F401
