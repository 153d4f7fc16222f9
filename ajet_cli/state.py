"""What the subcommands of one invocation share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import click

from ajet_core.plugin import PluginManager
from ajet_installation.interpreters import plugin_manager
from ajet_installation.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class CliState:
    """Options of the group, and what is made from them on first use.

    :param config: the TOML file of ``--config``.
    :param debug: show tracebacks.
    """

    config: Path | None = None
    debug: bool = False

    def settings(self, flags: Mapping[str, Any] | None = None) -> Settings:
        """The settings with `flags` over them.

        :raises ConfigError: they are wrong.
        """
        given = dict(flags or {})
        if self.config is not None:
            given["config"] = self.config
        return Settings(**given)

    @cached_property
    def plugins(self) -> PluginManager:
        """The plugins, of environments too, that the settings do not block."""
        return plugin_manager(self.settings())


pass_state = click.make_pass_decorator(CliState, ensure=True)


def _remember_config(ctx: click.Context, _: click.Parameter, value: Path | None) -> None:
    if value is not None:
        ctx.ensure_object(CliState).config = value


def config_option(command: F) -> F:
    """Add ``--config FILE``, before or after the subcommand's name."""
    return click.option(
        "--config",
        metavar="FILE",
        type=click.Path(path_type=Path),
        expose_value=False,
        is_eager=True,
        callback=_remember_config,
        help="Settings file.  [default: AJET_CONFIG, or ajet.toml if it exists]",
    )(command)


def set_flags(section: str, **values: object) -> dict[str, dict[str, object]]:
    """The flags that were given, as `Settings` takes them; None means not given."""
    given = {key: value for key, value in values.items() if value is not None}
    return {section: given} if given else {}
