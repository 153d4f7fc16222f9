"""State shared by the subcommands of one invocation."""

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
    """Options of the group, and objects created from them on first use.

    :param config: the TOML file of ``--config``.
    :param debug: show tracebacks.
    """

    config: Path | None = None
    debug: bool = False

    def settings(self, flags: Mapping[str, Any] | None = None) -> Settings:
        """Return the settings, overridden by `flags`.

        :raises ConfigError: they are invalid.
        """
        given = dict(flags or {})
        if self.config is not None:
            given["config"] = self.config
        return Settings(**given)

    @cached_property
    def plugins(self) -> PluginManager:
        """The manager of all plugins, including those in environments."""
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
    """Return the given flags in the form for `Settings`; None means not given."""
    given = {key: value for key, value in values.items() if value is not None}
    return {section: given} if given else {}
