"""``ajet research``."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ajet_core.errors import ConfigError

if TYPE_CHECKING:
    from ajet_research.events import AnyEvent
    from ajet_research.versions.history import VersionRow

_FAILED = 1
_DIRECTORY = click.Path(path_type=Path, file_okay=False)
_FILE = click.Path(path_type=Path, dir_okay=False)
_parallel = click.option(
    "--parallel", type=click.IntRange(1, 256), default=1, show_default=True, help="Trials at once."
)
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def research() -> None:
    """Run studies: a registered question goes in, a verified report comes out.

    docs/research.md explains the study file, the statistics and the report.
    """
    try:
        import numpy
        import scipy

        _ = numpy, scipy
    except ImportError as error:
        raise ConfigError(
            f"ajet research needs {error.name}: pip install 'agentjet[research]'"
        ) from error


@research.command()
@click.argument("study", type=click.Path(path_type=Path))
@click.option("--dir", "directory", type=_DIRECTORY, help="Its directory.  [default: STUDY.study]")
@_parallel
@_as_json
def run(study: Path, directory: Path | None, parallel: int, as_json: bool) -> None:
    """Start STUDY, resume it, or show that it is finished: always the same command.

    STUDY is a TOML file, a Markdown file with the study in its head between lines '+++', or the
    directory of a study that was started.
    """
    from ajet_research.leader import run_study

    if (study.parent / "ledger.sqlite").exists():
        # The study file inside a study's directory.
        source, where = study, study.parent
    elif study.is_dir():
        source, where = study / "study.toml", study
        source = source if source.exists() else study / "study.json"
    else:
        source, where = study, study.with_suffix(".study")
    where = directory or where
    run_study(source, where, parallel=parallel, on_event=_progress(as_json))
    _show_status(where, as_json)


@research.command()
@click.argument("directory", type=_DIRECTORY)
@_as_json
def status(directory: Path, as_json: bool) -> None:
    """Show how far the study in DIRECTORY is, without outcomes that its looks have not opened."""
    _show_status(directory, as_json)


@research.command()
@click.argument("directory", type=_DIRECTORY)
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
        for problem in result.problems:
            click.echo(problem)
        state = "finished" if result.finished else "not finished"
        click.echo(
            f"{len(result.problems)} problems: {result.rows} rows, {result.trials} raw stores, "
            f"{result.numerals} numerals; the study is {state}."
        )
    sys.exit(_FAILED if result.problems else 0)


@research.command()
@click.argument("directory", type=_DIRECTORY)
@click.option("--dir", "target", type=_DIRECTORY, help="Of the new study. [default: DIRECTORY-new]")
@_parallel
@_as_json
def replicate(directory: Path, target: Path | None, parallel: int, as_json: bool) -> None:
    """Run the study in DIRECTORY again with fresh seeds.

    Ends with 1 if a verdict comes out differently.
    """
    from ajet_research.replicating import replicate_study

    where = target or directory.with_name(f"{directory.resolve().name}-new")
    result = replicate_study(directory, where, parallel=parallel, on_event=_progress(as_json))
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
    "--measures", help="Names of measures, with commas.  [default: all but bandit_failures]"
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

    chosen = [name for name, its in MEASURES.items() if its.default]
    if measures is not None:
        chosen = list(dict.fromkeys(measures.split(",")))
    known = [MEASURES[name] for name in chosen if name in MEASURES]
    plugins = sorted({plugin for its in known for plugin in its.plugins})
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
@click.option(
    "--suite",
    type=click.Choice(["null", "effects", "mutations", "faults", "swarm", "versions"]),
    required=True,
)
@click.option(
    "--size",
    type=click.IntRange(1, 100_000),
    help="Studies, mutations, kills, topics or equal versions. [default: by suite]",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the worlds.")
@click.option(
    "--dir",
    "directory",
    type=_DIRECTORY,
    help="Keep the studies of the suites swarm and versions; resume them.",
)
def bench(suite: str, size: int | None, seed: int, directory: Path | None) -> None:
    """Measure studies in worlds whose truth is planted, and print one line of JSON."""
    from ajet_research.suites import SUITES

    if directory is not None and suite not in ("swarm", "versions"):
        raise ConfigError(f"--dir is for the suites swarm and versions; {suite} keeps nothing.")
    run_suite: Callable[..., dict[str, Any]] = SUITES[suite]
    options = {"size": size, "directory": directory}
    chosen = {name: value for name, value in options.items() if value is not None}
    click.echo(json.dumps(run_suite(seed=seed, **chosen)))


def _progress(quiet: bool) -> Callable[[AnyEvent], None] | None:
    """Return what shows rows of the ledger as they come, on standard error."""

    def show(event: AnyEvent) -> None:
        match event.kind:
            case "finished":
                what = f"failed: {event.failed}" if event.failed else "finished"
                click.echo(f"trial {event.trial} {what}", err=True)
            case "attempt_failed":
                click.echo(f"trial {event.trial}: {event.cause}; it is tried again", err=True)
            case "lost":
                click.echo(f"trial {event.trial} is lost", err=True)
            case "exhausted":
                click.echo(f"the budget's {event.resource} is used up", err=True)
            case "looked":
                said = ", ".join(f"{id_} {one.verdict}" for id_, one in event.findings.items())
                click.echo(f"look {event.look + 1}: {said}", err=True)
            case _:
                pass

    return None if quiet else show


def _show_status(directory: Path, as_json: bool) -> None:
    from ajet_research.status import study_status

    its = study_status(directory)
    if as_json:
        click.echo(json.dumps({**asdict(its), "directory": str(directory)}))
        return
    click.echo(its.question)
    trials = ", ".join(f"{count} {name}" for name, count in its.trials.items())
    click.echo(f"The study is {its.phase}. Trials: {trials}. Looks: {its.looks}.")
    if its.exhausted:
        click.echo(f"The budget ended it early: {its.exhausted}.")
    for id_, verdict in its.verdicts.items():
        click.echo(f"{id_}: {verdict}")
    if its.conclusion:
        click.echo(its.conclusion)
    if its.phase == "finished":
        click.echo(f"Report: {directory / 'report' / 'report.html'}")


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
