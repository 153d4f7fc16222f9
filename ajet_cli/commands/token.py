"""``ajet token``: create, list and revoke."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click
from pydantic import ValidationError
from rich.table import Table

from agentjet.client import TokenClient
from ajet_cli.output import plain, table_console
from ajet_cli.state import CliState, config_option, pass_state, set_flags
from ajet_core.errors import ConfigError, StoreError
from ajet_core.files import read_json
from ajet_core.protocol import TokenGrant, TokenInfo, TokenQuotas, TokenRequest

if TYPE_CHECKING:
    from ajet_server.security.credentials import TokenBook

F = TypeVar("F", bound=Callable[..., Any])

_RETRIES = 1
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class _Tokens(Protocol):
    def issue(self, request: TokenRequest) -> TokenGrant: ...
    def list(self) -> list[TokenInfo]: ...
    def revoke(self, token_id: str) -> TokenInfo: ...


class Duration(click.ParamType[float]):
    """``30d``, ``12h``, ``90m`` or ``45s``, in seconds."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Convert the value to seconds."""
        match = re.fullmatch(r"([1-9][0-9]{0,8})([smhd])", str(value))
        if match is None:
            self.fail(f"{value!r} is not a duration such as 30d, 12h, 90m or 45s", param, ctx)
        return float(match[1]) * _UNITS[match[2]]


def _where(command: F) -> F:
    for option in (
        config_option,
        click.option(
            "--run-dir",
            type=click.Path(path_type=Path, file_okay=False),
            help="Use the tokens of this run directory, whether a server runs on it or not.",
        ),
        click.option(
            "--url", help="URL of the server.  [default: AJET_URL, or http://127.0.0.1:8642]"
        ),
    ):
        command = option(command)
    return command


@click.group()
def token() -> None:
    """Create, list and revoke the tokens of a server. This needs a control token.

    A running server applies each change immediately.
    """


@token.command()
@click.option("--name", required=True, help="Name of its holder or purpose.")
@click.option(
    "--scope",
    type=click.Choice(["client", "view", "control"]),
    default="client",
    show_default=True,
    help="client: its own episodes; view: read everything; control: do everything.",
)
@click.option(
    "--expires",
    type=Duration(),
    help="Time until it expires, such as 30d or 12h.  [default: never]",
)
@click.option("--max-open", "open_episodes", type=int, help="Maximum number of open episodes.")
@click.option("--max-waiting", "waiting_claims", type=int, help="Maximum number of waiting claims.")
@click.option(
    "--max-calls", "calls_at_once", type=int, help="Maximum number of concurrent model calls."
)
@click.option(
    "--max-requests",
    "requests_per_minute",
    type=int,
    help="Maximum number of requests with the token per minute.",
)
@click.option(
    "--max-streams", "event_streams", type=int, help="Maximum number of open event streams."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@_where
@pass_state
def create(
    state: CliState,
    /,
    *,
    name: str,
    scope: str,
    expires: float | None,
    as_json: bool,
    url: str | None,
    run_dir: Path | None,
    **quotas: int | None,
) -> None:
    """Create a token and print its secret, which cannot be shown again."""
    try:
        request = TokenRequest.model_validate(
            {"name": name, "scope": scope, "expires_in": expires, "quotas": quotas}
        )
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise click.UsageError(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}") from None
    if run_dir is not None:
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _tokens(state, url, run_dir) as tokens:
        grant = tokens.issue(request)
    if as_json:
        click.echo(grant.model_dump_json())
        return
    click.echo(grant.token)
    info = grant.info
    until = f"until {_time(info.expires_at)}" if info.expires_at else "until it is revoked"
    click.echo(f"{info.scope} token {info.token_id} for {info.name}, {until}", err=True)


@token.command(name="list")
@click.option("--all", "show_all", is_flag=True, help="Include revoked and expired tokens.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
@_where
@pass_state
def list_tokens(
    state: CliState, show_all: bool, as_json: bool, url: str | None, run_dir: Path | None
) -> None:
    """List the tokens, without their secrets."""
    now = datetime.now(UTC).timestamp()
    with _tokens(state, url, run_dir) as tokens:
        listed = [info for info in tokens.list() if show_all or _condition(info, now) == "valid"]
    if as_json:
        click.echo(json.dumps([info.model_dump() for info in listed], indent=2))
        return
    table = Table(
        "id",
        "name",
        "scope",
        "",
        "created",
        "expires",
        "last used",
        "quotas",
        box=None,
        pad_edge=False,
    )
    for info in listed:
        condition = _condition(info, now)
        quotas = ", ".join(f"{key} {value}" for key, value in _set(info.quotas).items())
        times = (info.created_at, info.expires_at, info.last_used_at)
        cells = (info.token_id, info.name, info.scope, condition, *map(_time, times), quotas)
        style = None if condition == "valid" else "dim"
        table.add_row(*map(plain, cells), style=style)
    table_console().print(table)


@token.command()
@click.argument("token_id", metavar="ID")
@_where
@pass_state
def revoke(state: CliState, token_id: str, url: str | None, run_dir: Path | None) -> None:
    """Revoke a token. Open episodes of its holder are aborted."""
    with _tokens(state, url, run_dir) as tokens:
        info = tokens.revoke(token_id)
    click.echo(f"revoked: {info.scope} token {info.token_id} of {info.name}")


class _Audited:
    """The tokens of a run directory that no server has open, with an audit log."""

    def __init__(self, book: TokenBook, run_dir: Path) -> None:
        from ajet_server.security.audit import AuditLog

        self._book = book
        self._audit = AuditLog(run_dir)

    def issue(self, request: TokenRequest) -> TokenGrant:
        grant = self._book.issue(request)
        self._write("token.create", grant.info)
        return grant

    def list(self) -> list[TokenInfo]:
        return self._book.list()

    def revoke(self, token_id: str) -> TokenInfo:
        info = self._book.revoke(token_id)
        self._write("token.revoke", info)
        return info

    def _write(self, action: str, info: TokenInfo) -> None:
        self._audit.write(
            action, "", "this machine", "done", id=info.token_id, name=info.name, scope=info.scope
        )


@contextmanager
def _tokens(state: CliState, url: str | None, run_dir: Path | None) -> Iterator[_Tokens]:
    """Yield the tokens of the server, or of a run directory that no server has open."""
    if run_dir is not None and url is not None:
        raise click.UsageError("--url and --run-dir cannot be combined")
    settings = state.settings(set_flags("client", url=url)).client
    secret = settings.token.get_secret_value() if settings.token else None
    server = settings.url
    if run_dir is not None:
        if not run_dir.is_dir():
            raise ConfigError(f"the run directory {run_dir} does not exist", param="run-dir")
        from ajet_server.security.credentials import TokenBook

        book = TokenBook(run_dir)
        try:
            book.open()
        except StoreError:
            running = _running_at(run_dir)
            if running is None:
                raise
            server = running
        else:
            with closing(book):
                yield _Audited(book, run_dir)
            return
    with closing(TokenClient(server, secret, retries=_RETRIES)) as client:
        yield client


def _running_at(run_dir: Path) -> str | None:
    """Return the URL of the server that has `run_dir` open, from its ``server.json``."""
    try:
        return str(read_json(run_dir / "server.json")["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _condition(info: TokenInfo, now: float) -> str:
    if info.revoked_at is not None:
        return "revoked"
    return "expired" if info.expires_at is not None and now >= info.expires_at else "valid"


def _set(quotas: TokenQuotas) -> dict[str, int]:
    return quotas.model_dump(exclude_none=True)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "never"
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
