"""``ajet research``."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ajet_cli.commands.researchers import interpret, propose, study_of_topic, words_of_topic
from ajet_cli.studies.commands import COMMANDS
from ajet_cli.studies.places import StudyDirectory, source_and_directory
from ajet_cli.words import count
from ajet_core.errors import ConfigError
from ajet_server.page.visible_text import visible

if TYPE_CHECKING:
    from ajet_research.events import AnyEvent
    from ajet_research.versions.history import VersionRow

_FAILED = 1
_SUITES = (
    *("null", "effects", "verify", "links", "faults", "swarm", "drivers"),
    *("search", "adversaries", "budgets", "outage", "versions"),
)
_KEPT = ("adversaries", "swarm", "versions")
_DIRECTORY = click.Path(path_type=Path, file_okay=False)
_STUDY = StudyDirectory()
_FILE = click.Path(path_type=Path, dir_okay=False)
_parallel = click.option(
    "--parallel", type=click.IntRange(1, 256), default=1, show_default=True, help="Trials at once."
)
_on = click.option(
    "--on",
    metavar="PLACES",
    help="File that says where trials run, or 'local'.  [default: local]",
)
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def research() -> None:
    """Run studies: experiments that are registered in advance and end in a verified report.

    docs/research.md is the guide, and docs/research-reference.md lists all keys of a study file.
    """
    try:
        import numpy
        import scipy

        _ = numpy, scipy
    except ImportError as error:
        raise ConfigError(
            f"ajet research needs {error.name}: pip install 'agentjet[research]>=0.1'"
        ) from error


research.add_command(propose)
research.add_command(interpret)


@research.command()
@click.argument("study", type=click.Path(path_type=Path))
@click.option(
    "--dir", "directory", type=_DIRECTORY, help="Directory of the study.  [default: STUDY.study]"
)
@_parallel
@_on
@_as_json
@click.option("--detach", is_flag=True, help="Run it in the background, and return.")
def run(
    study: Path,
    directory: Path | None,
    parallel: int,
    on: str | None,
    as_json: bool,
    *,
    detach: bool,
) -> None:
    """Start or resume STUDY, or show its result.

    STUDY is a TOML file, a Markdown file with the study in its head between lines '+++', or the
    directory of a study that was started. If the head has a table 'researcher' instead, that
    researcher writes the study and, at its end, about the report. Trials run on this machine, or
    where the file PLACES says: on a Slurm cluster, or on hosts that are reached with ssh.
    """
    from ajet_research.leader import run_study
    from ajet_research.places import runner_in
    from ajet_research.researchers.proposing import is_topic

    source, where = source_and_directory(study, directory)
    topic = source if is_topic(source) else None
    if topic is not None:
        source = study_of_topic(topic, where, quiet=as_json)
    runner = runner_in(on)
    if detach:
        from ajet_cli.studies.leading import begin_study

        begin_study(source, where, parallel, on)
        _show_status(where, as_json)
        return
    if not as_json:
        _show_what_it_waits_for(where)
    run_study(source, where, parallel=parallel, on_event=_progress(as_json), runner=runner)
    if topic is not None:
        words_of_topic(topic, where, quiet=as_json)
    _show_status(where, as_json)


@research.command()
@click.argument("study", type=click.Path(path_type=Path))
@_as_json
def check(study: Path, as_json: bool) -> None:
    """Check the file STUDY as `run` does, without starting it, and show what it may cost."""
    from ajet_research.checking import check_study

    checked = check_study(study)
    if as_json:
        click.echo(json.dumps(asdict(checked)))
        return
    disk = "" if checked.disk_mib is None else f" and {checked.disk_mib:.4g} MiB"
    click.echo(
        f"The study can start: {checked.trials} trials of {len(checked.arms)} arms, at most "
        f"{checked.compute_hours:.3g} h{disk}."
    )
    for index, look in enumerate(checked.looks, 1):
        click.echo(
            f"Look {index}: {look.seeds} seeds; its least p value is {look.least_p:.2g}, and its "
            f"alpha per comparison {look.alpha:.2g}."
        )
    for warning in checked.warnings:
        click.echo(f"Warning: {warning}")


@research.command("try")
@click.argument("study", type=_FILE)
@click.option(
    "--set",
    "changes",
    metavar="PATH=VALUE",
    multiple=True,
    help="Change a setting of these trials, such as train_steps=2. Repeatable.",
)
@_as_json
def try_(study: Path, changes: Sequence[str], as_json: bool) -> None:
    """Run one trial of each arm of the file STUDY, to see whether it runs and how long it takes.

    It registers nothing, uses a seed that the study does not use, and shows no outcome. Ends with 1
    if the trial of an arm fails.
    """
    from ajet_cli.changed_config import typed_value
    from ajet_cli.studies.trying import TriedArm, try_arms

    settings: dict[str, bool | int | float | str] = {}
    for change in changes:
        path, equals, text = change.partition("=")
        value = typed_value(text)
        if not (path and equals and isinstance(value, bool | int | float | str)):
            raise ConfigError(f"--set {change}: expected PATH=VALUE, such as train_steps=2")
        settings[path] = value

    def show(tried_arm: TriedArm) -> None:
        became = f"failed: {tried_arm.problem}" if tried_arm.problem else "ended"
        click.echo(visible(f"{tried_arm.arm}: {became} after {tried_arm.seconds:.1f} s"))
        for line in tried_arm.log.splitlines():
            click.echo(f"  {visible(line)}", err=True)

    tried = try_arms(study, settings, on_arm=None if as_json else show)
    if as_json:
        click.echo(json.dumps([asdict(one) for one in tried]))
    sys.exit(_FAILED if any(one.problem for one in tried) else 0)


@research.command()
@click.argument("directory", type=_STUDY)
@_as_json
@click.option("--watch", is_flag=True, help="Keep refreshing until the study is finished.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    help="Seconds between refreshes.",
)
def status(directory: Path, as_json: bool, *, watch: bool, interval: float) -> None:
    """Show the progress of the study in DIRECTORY. Outcomes are hidden until their analysis."""
    if not watch:
        _show_status(directory, as_json)
        return
    if as_json:
        raise click.UsageError("--json and --watch cannot be combined")
    from rich.live import Live

    from ajet_cli.output import table_console
    from ajet_cli.studies.lines import status_table
    from ajet_research.status import study_status

    status = study_status(directory)
    with Live(status_table(status, directory), console=table_console(), auto_refresh=False) as live:
        while status.phase != "finished":
            time.sleep(interval)
            status = study_status(directory)
            live.update(status_table(status, directory), refresh=True)


@research.command()
@click.argument("directory", type=_STUDY)
@click.option(
    "--seconds", type=click.FloatRange(min=0), help="Longest time to wait.  [default: no limit]"
)
@click.option("--end", is_flag=True, help="Do not return at a look.")
@_as_json
def wait(directory: Path, seconds: float | None, as_json: bool, *, end: bool) -> None:
    """Wait for news of the study in DIRECTORY, and show its status.

    News is a look, a question, a pause, a leader that has ended, or the end of the study. Ends with
    1 if there was none in time.
    """
    from ajet_cli.studies.leading import wait_for_news

    limit = math.inf if seconds is None else seconds
    news, _ = wait_for_news(directory, limit, looks=not end)
    _show_status(directory, as_json)
    sys.exit(0 if news else _FAILED)


@research.command()
@click.argument("directory", type=_STUDY)
@_as_json
def verify(directory: Path, as_json: bool) -> None:
    """Derive the report in DIRECTORY again from the raw stores, byte for byte.

    Ends with 1 if anything differs.
    """
    from ajet_research.verifying import verify_study

    result = verify_study(directory)
    if as_json:
        click.echo(json.dumps(asdict(result)))
    else:
        for line in (*result.problems, *result.amendments):
            click.echo(visible(line))
        state = "finished" if result.finished else "not finished"
        click.echo(
            f"{count(len(result.problems), 'problem')}: {result.rows} rows, {result.trials} raw "
            f"stores, {result.numerals} numerals; the study is {state}."
        )
    sys.exit(_FAILED if result.problems else 0)


@research.command()
@click.argument("directory", type=_STUDY)
@click.option(
    "--dir", "target", type=_DIRECTORY, help="Directory of the new study.  [default: DIRECTORY-new]"
)
@_parallel
@_on
@_as_json
def replicate(
    directory: Path, target: Path | None, parallel: int, on: str | None, as_json: bool
) -> None:
    """Run the study in DIRECTORY again with fresh seeds.

    Ends with 1 if a verdict comes out differently.
    """
    from ajet_research.places import runner_in
    from ajet_research.replicating import replicate_study

    where = target or directory.with_name(f"{directory.resolve().name}-new")
    result = replicate_study(
        directory, where, parallel=parallel, on_event=_progress(as_json), runner=runner_in(on)
    )
    if as_json:
        click.echo(json.dumps({**asdict(result), "repeated": result.repeated}))
    else:
        for id_, verdict in result.first.items():
            click.echo(f"{id_}: {verdict}; with fresh seeds: {result.again[id_]}")
        click.echo(f"The new study is in {where}.")
    sys.exit(0 if result.repeated else _FAILED)


@research.command()
@click.option("--baseline", required=True, help="Version to compare with; see below.")
@click.option("--candidate", default="tree", show_default=True, help="Version that may be worse.")
@click.option(
    "--measures", help="Names of measures, with commas.  [default: those that train no model]"
)
@click.option("--seeds", type=click.IntRange(1, 20), help="Of each arm.  [default: by measures]")
@click.option("--repository", type=_DIRECTORY, default=".", help="Of agentjet.  [default: .]")
@click.option(
    "--dir", "directory", type=_DIRECTORY, help="Of the studies.  [default: runs/versions/VERSIONS]"
)
@click.option("--history", type=_FILE, help="Append the results to this file of JSON lines.")
@_as_json
def versions(
    *,
    baseline: str,
    candidate: str,
    measures: str | None,
    seeds: int | None,
    repository: Path,
    directory: Path | None,
    history: Path | None,
    as_json: bool,
) -> None:
    """Compare two versions of agentjet, and say for each measure whether it has regressed.

    A version is 'tree' (the working tree as it is), 'commit:REV', 'tag:NAME' or 'wheel:DIRECTORY'.
    Ends with 1 if any measure has regressed. The same command resumes what was interrupted.
    """
    from ajet_research.versions.comparing import compare_versions
    from ajet_research.versions.history import append_history
    from ajet_research.versions.measures import MEASURES
    from ajet_research.versions.wheels import commit_of, kept_version

    chosen = [name for name, measure in MEASURES.items() if measure.default]
    if measures is not None:
        chosen = list(dict.fromkeys(measures.split(",")))
    known = [MEASURES[name] for name in chosen if name in MEASURES]
    plugins = sorted({plugin for measure in known for plugin in measure.plugins})
    first, second = (
        kept_version(source, repository, plugins=plugins) for source in (baseline, candidate)
    )
    commits = (commit_of(baseline, repository), commit_of(candidate, repository))
    where = directory or Path("runs/versions") / re.sub(r"[^\w.+-]+", "-", f"{second}--{first}")
    rows = compare_versions(
        first,
        second,
        where,
        measures=chosen,
        seeds=seeds,
        commits=commits,
        on_event=_progress(as_json),
    )
    if history is not None:
        append_history(history, rows)
    _show_rows(rows, as_json)
    sys.exit(_FAILED if any(row.status == "regressed" for row in rows) else 0)


@research.command()
@click.argument("path", metavar="HISTORY", type=_FILE)
@click.option("--page", type=_FILE, help="Write the history as one HTML page.")
@_as_json
def history(path: Path, page: Path | None, as_json: bool) -> None:
    """Show the comparisons of versions in the file HISTORY."""
    from ajet_research.versions.history import read_history
    from ajet_research.versions.page import history_page

    rows = read_history(path)
    if page is not None:
        page.write_text(history_page(rows), encoding="utf-8")
    _show_rows(rows, as_json)


@research.command()
@click.option("--suite", type=click.Choice(_SUITES), required=True)
@click.option(
    "--size",
    type=click.IntRange(1, 100_000),
    help="Number of studies, mutations, kills, topics, drivers or equal versions, by suite.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the worlds."
)
@click.option(
    "--dir",
    "directory",
    type=_DIRECTORY,
    help="Keep the studies of the suites adversaries, swarm and versions; continue there.",
)
def bench(suite: str, size: int | None, seed: int, directory: Path | None) -> None:
    """Measure `ajet research` itself in worlds with a known answer, and print one line of JSON.

    Ends with 1 if the suite does not pass.
    """
    from ajet_cli.studies.drivers import run_drivers
    from ajet_research.suites import SUITES

    if directory is not None and suite not in _KEPT:
        raise ConfigError(f"--dir is for the suites {', '.join(_KEPT)}; {suite} keeps nothing.")
    # What drives a study from outside is beside the commands, and not in the research.
    suites: dict[str, Callable[..., dict[str, Any]]] = {**SUITES, "drivers": run_drivers}
    options = {"size": size, "directory": directory}
    chosen = {name: value for name, value in options.items() if value is not None}
    result = suites[suite](seed=seed, **chosen)
    click.echo(json.dumps(result))
    if not result["passed"]:
        raise click.exceptions.Exit(1)


def _show_what_it_waits_for(directory: Path) -> None:
    """Show why a study that was begun does not continue by itself, on standard error."""
    from ajet_cli.studies.leading import is_registered
    from ajet_cli.studies.lines import waiting_lines
    from ajet_research.status import study_status

    if is_registered(directory):
        status = study_status(directory)
        if status.phase in ("paused", "asking"):
            # This process is about to lead it.
            for line in waiting_lines(replace(status, leader="this one"), directory):
                click.echo(visible(line), err=True)


def _progress(quiet: bool) -> Callable[[AnyEvent], None] | None:
    """Return what shows rows of the ledger as they come, on standard error."""

    def show(event: AnyEvent) -> None:
        match event.kind:
            case "finished":
                what = f"failed: {visible(event.failed)}" if event.failed else "finished"
                click.echo(f"trial {event.trial} {what}", err=True)
            case "attempt_failed":
                cause = visible(event.cause)
                click.echo(f"trial {event.trial}: {cause}; it is tried again", err=True)
            case "lost":
                click.echo(f"trial {event.trial} is lost", err=True)
            case "exhausted":
                click.echo(f"the budget's {event.resource} is used up", err=True)
            case "paused" | "resumed" | "stopped" | "amended":
                why = f": {event.why}" if event.why else ""
                click.echo(visible(f"{event.kind} by {event.by}{why}"), err=True)
            case "asked":
                until = f"{event.deadline:%Y-%m-%d %H:%M} UTC"
                what = "waits for an answer (ajet research answer) until"
                click.echo(f"the question {event.question} {what} {until}", err=True)
            case "answered":
                by = event.by or "the registered default"
                click.echo(visible(f"{event.question}: {event.answer}, by {by}"), err=True)
            case "looked":
                said = ", ".join(f"{id_} {one.verdict}" for id_, one in event.findings.items())
                click.echo(f"look {event.look + 1}: {said}", err=True)
            case _:
                pass

    return None if quiet else show


def _show_status(directory: Path, as_json: bool) -> None:
    from ajet_cli.studies.lines import status_lines
    from ajet_research.status import study_status

    status = study_status(directory)
    if as_json:
        click.echo(json.dumps({**asdict(status), "directory": str(directory)}))
        return
    for line in status_lines(status, directory):
        click.echo(line)


def _show_rows(rows: Sequence[VersionRow], as_json: bool) -> None:
    from ajet_research.versions.page import shown_change

    if as_json:
        click.echo(json.dumps([row.model_dump(mode="json") for row in rows]))
        return
    for row in rows:
        low, high = (shown_change(row, value) or "open" for value in (row.low, row.high))
        click.echo(
            f"{row.date} {row.measure:15} {row.status:10} {shown_change(row, row.ratio):>8} "
            f"({low} to {high}), {len(row.seeds)} seeds: {row.candidate} against {row.baseline}"
        )


for _command in COMMANDS:
    research.add_command(_command)
