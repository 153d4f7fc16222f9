"""``ajet check``."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import asdict

import click

from ajet_cli.output import echo_plain
from ajet_cli.state import CliState, config_option, pass_state
from ajet_sources import check_source, chosen_tasks, load_source
from ajet_sources.checking import SourceCheck
from ajet_sources.reading import RowsReport

_FAILED = 1


@click.command()
@click.argument("source")
@click.option("--split", metavar="NAME", help="Split of the tasks.  [default: the first]")
@click.option("--limit", type=click.IntRange(1), help="Check the first tasks only.")
@click.option(
    "--concurrency", type=click.IntRange(1), default=8, show_default=True, help="Tasks at once."
)
@click.option("--timeout", type=click.FloatRange(0, min_open=True), help="Seconds for one score.")
@click.option(
    "--show", type=click.IntRange(0), default=20, show_default=True, help="Findings to show."
)
@click.option("--json", "as_json", is_flag=True, help="Print the check as JSON.")
@config_option
@pass_state
def check(
    state: CliState,
    /,
    source: str,
    *,
    split: str | None,
    limit: int | None,
    concurrency: int,
    timeout: float | None,
    show: int,
    as_json: bool,
) -> None:
    """Check the tasks of SOURCE and their grader, without a model.

    For each task, its own solution must get the greatest reward, an empty answer less, and a junk
    answer the least. Scoring the same answer twice must give the same reward. Exit status 1 means
    that something is wrong. Rows that are bad, duplicates or in two splits are shown first.
    docs/sources.md explains it.
    """
    tasks_source = load_source(source, plugins=state.plugins)

    async def checked() -> SourceCheck:
        async with tasks_source:
            tasks = chosen_tasks(tasks_source, split, limit)
            return await check_source(tasks_source, tasks, concurrency=concurrency, timeout=timeout)

    done = asyncio.run(checked())
    # Only sources of rows have one.
    rows = getattr(tasks_source, "report", None)
    if as_json:
        of_rows = {"rows": asdict(rows)} if isinstance(rows, RowsReport) else {}
        click.echo(json.dumps({**asdict(done), **of_rows}, indent=1))
    else:
        if isinstance(rows, RowsReport):
            echo_plain(str(rows))
        _print(done, show)
    if done.findings:
        raise SystemExit(_FAILED)


def _print(done: SourceCheck, show: int) -> None:
    for finding in done.findings[:show]:
        echo_plain(str(finding))
    if len(done.findings) > show:
        click.echo(f"and {len(done.findings) - show} more")
    counts = Counter(finding.fault for finding in done.findings)
    wrong = sum(bool(task.findings) for task in done.tasks)
    parts = ", ".join(f"{count} {fault}" for fault, count in counts.most_common())
    click.echo(
        f"{len(done.tasks)} tasks checked, {wrong} with findings{f': {parts}' if parts else ''}"
    )
    times = sorted(second for task in done.tasks for second in task.seconds.values())
    if times:
        middle = times[len(times) // 2]
        click.echo(f"a score takes {middle:.3g} s (median), at most {times[-1]:.3g} s")
    if done.unscored:
        click.echo(f"{len(done.unscored)} tasks cannot be scored without a model")
    if done.without_reference:
        click.echo(f"{len(done.without_reference)} tasks have no solution to compare with")
    if done.hosts:
        echo_plain(f"the grader reached {', '.join(done.hosts)}: its rewards depend on the network")
    if done.keys:
        click.echo(
            f"the grader can read {', '.join(done.keys)}: unset what it does not need, because a "
            "grader may run what a model wrote"
        )
