"""The server that a command is for: that of a run directory, of a URL, or of the settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click

from ajet_cli.state import CliState, set_flags
from ajet_core.credentials import STATE, find_local, state_dir
from ajet_core.errors import ConfigError
from ajet_core.files import read_json

F = TypeVar("F", bound=Callable[..., Any])

_NOTE = "server.json"
INNER = "server"
"""The run directory in the directory of a `LocalServer`."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server is, and how to log in.

    :param token: None to look for the token file of a local server.
    """

    url: str
    token: str | None = field(repr=False)


def server_options(command: F) -> F:
    """Add the argument ``RUN_DIR`` and the option ``--url``."""
    command = click.option(
        "--url", help="URL of the server.  [default: AJET_URL, or http://127.0.0.1:8642]"
    )(command)
    return click.argument("run_dir", required=False, type=click.Path(path_type=Path))(command)


def find_server(state: CliState, url: str | None, run_dir: Path | None = None) -> ServerAddress:
    """Return the server that the user has chosen.

    :param run_dir: that of a running server on this machine, or of a `LocalServer`.
    :raises UsageError: there are a URL and a directory.
    :raises ConfigError: no server has the directory open, or a setting is invalid.
    """
    if run_dir is not None and url is not None:
        raise click.UsageError("RUN_DIR and --url both say which server: give one of them")
    if run_dir is None:
        return _of_settings(state, url)
    where, noted = _read_note(run_dir)
    # A `LocalServer` has its token files in its own directory.
    tokens = find_local(noted, state_dir(where / STATE))
    return _of_settings(state, noted) if tokens is None else ServerAddress(noted, tokens.control)


def _of_settings(state: CliState, url: str | None) -> ServerAddress:
    settings = state.settings(set_flags("client", url=url)).client
    return ServerAddress(
        settings.url, settings.token.get_secret_value() if settings.token else None
    )


def _read_note(run_dir: Path) -> tuple[Path, str]:
    """Return the directory of the server's files and its URL.

    :raises ConfigError: no server has the directory open.
    """
    if not run_dir.is_dir():
        raise ConfigError(f"the run directory {run_dir} does not exist", param="run_dir")
    for where in (run_dir, run_dir / INNER):
        try:
            return where, str(read_json(where / _NOTE)["url"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    raise ConfigError(
        f"no server is running in {run_dir} (`ajet inspect` and `ajet report` read its files "
        "without one)",
        param="run_dir",
    )
