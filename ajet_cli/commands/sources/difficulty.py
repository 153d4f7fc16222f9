"""``ajet difficulty``."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from statistics import median

import click
from rich.table import Table

from ajet_cli.inspect.difficulty import DifficultyStep, difficulty_steps, picture
from ajet_cli.inspect.files import new_file
from ajet_cli.output import table_console
from ajet_cli.run_paths import RunPath
from ajet_cli.state import CliState, config_option, pass_state
from ajet_core.errors import RequestError
from ajet_server.store.chosen_store import store_of_run
from ajet_server.store.store_reader import StoreReader

_ROWS = 20
_HARD, _SOLVED = 0.0, 1.0


@click.command()
@click.argument("run", type=RunPath())
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Draw the success rates over the steps, as SVG; a file of that name is replaced.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the rates of all steps as JSON.")
@config_option
@pass_state
def difficulty(state: CliState, run: Path, out: Path | None, as_json: bool) -> None:
    """Show how difficult the tasks of a run were over its steps, also while it runs.

    RUN is a run directory. A task's success rate is the mean reward of its episodes in a batch,
    where 0 is the least and 1 the greatest reward of the run.
    """

    async def read() -> list[DifficultyStep]:
        store = store_of_run(run, state.settings().store, state.plugins)
        async with StoreReader(store, run) as reader:
            return difficulty_steps([one async for one in reader.trained_rewards()])

    steps = asyncio.run(read())
    if not steps:
        raise RequestError(f"no step of {run} has trained an episode with a reward yet")
    if out is not None:
        with new_file(out, replace=True) as file:
            file.write_text(
                picture(steps, f"Success rates of tasks in {run.name}"), encoding="utf-8"
            )
    if as_json:
        rows = [{"step": s.step, "batch": s.batch, "known": s.known} for s in steps]
        click.echo(json.dumps(rows))
        return
    table = Table(box=None, pad_edge=False)
    for column in ("step", "tasks", "all failed", "between", "all solved", "median", "known tasks"):
        table.add_column(column, justify="right")
    shown = min(len(steps), _ROWS)
    for row in range(shown):
        shown_step = steps[(row + 1) * len(steps) // shown - 1]
        failed = sum(rate <= _HARD for rate in shown_step.batch)
        solved = sum(rate >= _SOLVED for rate in shown_step.batch)
        cells = (
            shown_step.step,
            len(shown_step.batch),
            failed,
            len(shown_step.batch) - failed - solved,
            solved,
        )
        table.add_row(
            *map(str, cells), f"{median(shown_step.batch):.2f}", str(len(shown_step.known))
        )
    table_console().print(table)
