"""``ajet store``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from ajet_cli.state import CliState, config_option, pass_state
from ajet_core.errors import RequestError
from ajet_server.store.chosen_store import make_store, note_store, noted_otherwise
from ajet_server.store.copying import Copied, copy_run
from ajet_server.store.store_reader import StoreReader

_EVERY = 500


@click.group()
def store() -> None:
    """Move a run to another sample store."""


@store.command("copy")
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@config_option
@pass_state
def copy(cli: CliState, *, run: Path) -> None:
    """Copy the records of RUN, a run directory, to the store that the settings choose.

    First set [store] in ajet.toml to the new store. The run's server must be stopped. The copy is
    compared with the original, which stays as it is; from then on the run uses the new store. An
    interrupted copy is continued by the same command.
    """
    chosen = cli.settings().store
    noted = noted_otherwise(run, chosen)
    if noted is None:
        raise RequestError(
            f"{run} already uses the store {chosen.name!r} with these settings: set [store] in "
            "ajet.toml to the new store first"
        )

    async def write() -> Copied:
        source = make_store(noted, cli.plugins, run)
        # A store that does not exist must not be created.
        async with StoreReader(source, run):
            pass
        # No server may write to it meanwhile.
        await source.open()
        try:
            target = make_store(chosen, cli.plugins, run)
            await target.open()
            try:
                return await copy_run(source, target, _tell)
            finally:
                await target.close()
        finally:
            await source.close()

    copied = asyncio.run(write())
    note_store(chosen, run)
    click.echo(
        f"copied {copied.episodes} episodes with {copied.calls} calls, {copied.batches} batches "
        f"and {copied.steps} steps, and compared them; {run} now uses the store {chosen.name!r}"
    )


def _tell(copied: Copied) -> None:
    if copied.episodes % _EVERY == 0:
        click.echo(f"{copied.episodes} episodes, {copied.calls} calls", err=True)
