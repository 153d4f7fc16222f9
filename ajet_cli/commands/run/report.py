"""``ajet report``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import click

from ajet_cli.inspect.files import new_file
from ajet_cli.report.comparison import MOST_RUNS, comparison_page
from ajet_cli.report.reading import RunReport, read_report
from ajet_cli.report.run_page import run_page
from ajet_cli.run_paths import RunPath
from ajet_cli.state import CliState, config_option, pass_state
from ajet_core.errors import RequestError
from ajet_server.store.chosen_store import store_of_run

_EPISODES = 3
_MOST_EPISODES = 20


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=RunPath())
@click.option(
    "-o",
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("report.html"),
    show_default=True,
    help="The file to write.",
)
@click.option(
    "--episodes",
    type=click.IntRange(0, _MOST_EPISODES),
    default=_EPISODES,
    show_default=True,
    help="How many of the best and of the worst episodes to show with their messages; 0 leaves "
    "out everything that agents and the model wrote.",
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@config_option
@pass_state
def report(cli: CliState, *, runs: tuple[Path, ...], out: Path, episodes: int, force: bool) -> None:
    """Write a report of a run, or a comparison of up to six, as one HTML file.

    RUN is a run directory; its server may be running. The file needs no network and no script.
    """
    if len(runs) > MOST_RUNS:
        raise click.UsageError(f"at most {MOST_RUNS} runs can be compared in one report")
    alone = len(runs) == 1

    with new_file(out, replace=force) as file:
        reports = [
            _read(cli, run, name, episodes if alone else 0)
            for run, name in zip(runs, _names(runs), strict=True)
        ]
        page = run_page(reports[0]) if alone else comparison_page(reports)
        content = page.encode()
        file.write_bytes(content)
    click.echo(f"wrote {out} ({len(content) / 2**20:.1f} MiB)")
    for one in reports:
        for problem in one.problems:
            click.echo(f"{one.name}: {problem}")


def _names(runs: Sequence[Path]) -> list[str]:
    """Return the last parts of the paths of runs, as many as tell them apart."""
    parts = [run.absolute().parts for run in runs]
    names: list[str] = []
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-count:]) for part in parts]
        if len(set(names)) == len(set(parts)):
            break
    return names


def _read(cli: CliState, run: Path, name: str, episodes: int) -> RunReport:
    if not run.exists():
        raise RequestError(f"{run} does not exist, so there is no run to report")
    settings = cli.settings()
    store = store_of_run(run, settings.store, cli.plugins)
    run_dir = run if run.is_dir() else run.parent
    return asyncio.run(read_report(store, run_dir, name, episodes, settings.costs))
